"""Delays a fork until PyTorch's threads sleep, on Python 3.11.0 to 3.11.9.

These versions have a defect (python/cpython#112275): a forked child hangs if another thread of its
parent was creating a Python thread state. PyTorch's threads do that after each collective, to
release its tensors, and a `DataLoader` with worker processes forks between collectives. A thread
that sleeps is not doing it.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

LIMIT_S = 1.0
LOOK_S = 0.001
LOOKS = 2
"""A thread that sleeps because it waits for the GIL continues between two looks."""

THREADS = Path("/proc/self/task")
TORCH_PREFIX = "(pt_"


def wait_for_sleep() -> None:
    """Wait until PyTorch's threads sleep, at most `LIMIT_S`."""
    deadline_s = time.monotonic() + LIMIT_S
    seen = 0
    while seen < LOOKS and time.monotonic() < deadline_s:
        seen = seen + 1 if _torch_sleeps() else 0
        time.sleep(LOOK_S)


def _torch_sleeps() -> bool:
    for thread in THREADS.iterdir():
        with suppress(OSError):  # it has ended
            _, name, state, *_ = (thread / "stat").read_text().split(maxsplit=3)
            if name.startswith(TORCH_PREFIX) and state != "S":
                return False
    return True


if sys.version_info < (3, 11, 10) and THREADS.is_dir():
    os.register_at_fork(before=wait_for_sleep)
