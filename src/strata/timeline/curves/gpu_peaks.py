"""Peak speed of GPUs: dense bfloat16 FLOP/s with tensor cores, without sparsity.

Sources are NVIDIA's datasheets. Those of Hopper and newer list the value with sparsity; here it is
halved: GB200 and B200 (5 and 4.5 PFLOP/s), H200, H100 and H800 SXM (1,979 TFLOP/s), H200 NVL and
H100 NVL (1,671), H100 and H800 PCIe (1,513). Dense values as listed, in TFLOP/s: H20 148, A100 and
A800 312, A40 149.7, A30 165, A10 125, L40S 362, L40 181, L4 121.

A card that is not in the table has no known peak, so nothing is derived from it.
"""

PEAKS: tuple[tuple[str, float], ...] = (
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200 NVL", 835.5e12),
    ("H200", 989.5e12),
    ("H100 NVL", 835.5e12),
    ("H100 PCIe", 756.5e12),
    ("H100", 989.5e12),
    ("H800 PCIe", 756.5e12),
    ("H800", 989.5e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10", 125e12),
    ("L40S", 362.05e12),
    ("L40", 181.05e12),
    ("L4", 121e12),
)
"""By a part of the card's name; the first that fits counts."""


def peak_flops(card: str) -> float | None:
    """The peak of a card by the name that its driver reports; None if it is not known."""
    words = card.replace("-", " ")
    found = (peak for name, peak in PEAKS if f" {name} " in f" {words} ")
    return next(found, None)
