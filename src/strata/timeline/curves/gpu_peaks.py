"""Peak speed of GPUs: dense bfloat16 FLOP/s with tensor cores, without sparsity.

Sources are NVIDIA's datasheets, which list the value with sparsity for most cards; here it is
halved: B200 and GB200 (Blackwell datasheet: 4.5 PFLOP/s with sparsity for B200 in HGX), H200 and
H100 SXM (1,979 TFLOP/s), H100 PCIe (1,513), H100 NVL (1,671), H20 (148 dense), H800 (1,979),
A100 and A800 (312 dense), A40 (149.7 dense), A30 (165 dense), A10 (125 dense), A6000 (154.8 dense),
L40S (362.05 dense), L40 (181.05 dense), L4 (121 dense), RTX 4090 (165.2 dense).

A card that is not in the table has no known peak, so nothing is derived from it.
"""

PEAKS: tuple[tuple[str, float], ...] = (
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200", 989.5e12),
    ("H100 NVL", 835.5e12),
    ("H100 PCIe", 756.5e12),
    ("H100", 989.5e12),
    ("H800", 989.5e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("RTX A6000", 154.8e12),
    ("L40S", 362.05e12),
    ("L40", 181.05e12),
    ("L4", 121e12),
    ("RTX 4090", 165.2e12),
)
"""By a part of the card's name; the first that fits counts."""


def peak_flops(card: str) -> float | None:
    """The peak of a card by the name that its driver reports; None if it is not known."""
    words = card.replace("-", " ")
    found = (peak for name, peak in PEAKS if f" {name} " in f" {words} ")
    return next(found, None)
