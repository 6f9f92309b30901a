"""Guards that the figures of a card are those of the real card; skipped without one.

Also a program, for machines without pytest: `python tests/gpu/test_real_cards.py`.
"""

import time
import unittest

try:
    import torch
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available():
    raise unittest.SkipTest("no CUDA device here")

from strata.sdk.record.gpu_cards import Cards, visible_cards

HELD_BYTES = 2**30
BUSY_S = 30.0


def test_memory_and_utilization_are_those_of_the_card():
    torch.zeros(1, device="cuda")
    cards = Cards(visible_cards())
    before = cards.read()[0]
    assert before.name == torch.cuda.get_device_name(0)
    assert before.memory_total_bytes >= torch.cuda.get_device_properties(0).total_memory
    held = torch.zeros(HELD_BYTES, dtype=torch.uint8, device="cuda")
    after = cards.read()[0]
    assert after.memory_used_bytes - before.memory_used_bytes >= HELD_BYTES
    square = torch.ones(4096, 4096, device="cuda")
    deadline_s = time.monotonic() + BUSY_S
    seen = 0.0
    while seen < 90 and time.monotonic() < deadline_s:
        for _ in range(50):
            square @ square
        torch.cuda.synchronize()
        seen = cards.read()[0].utilization_percent
    assert seen >= 90, f"a busy card is shown as {seen} % busy"
    assert held.numel() == HELD_BYTES


if __name__ == "__main__":
    test_memory_and_utilization_are_those_of_the_card()
    print("ok: memory and utilization are those of the card")
