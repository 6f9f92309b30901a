"""Random changes of bytes, the same for the same seed.

They are what libFuzzer does without coverage: bits, numbers at the edges of their types, and pieces
that are repeated, removed, moved, or taken from another input.
"""

from random import Random

EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
TOKENS = (b"[" * 200, b"{", b"}", b'"', b"\xff", b"\x00", b"-1", b"1e999", b"null", b"../", b"NaN")
TOKENS += (
    b"\x91" * 5_000,
    b"99999999999999999999",
    b"9223372036854775807",
    b"\n",
    b",",
    b"\xc0\x80",
    b"[" * 5_000,
)
MAX_BYTES = 1 << 16


def mutated(dice: Random, inputs: list[bytes]) -> bytes:
    """One of the inputs with a few random changes."""
    data = bytearray(dice.choice(inputs))
    for _ in range(dice.choice((1, 1, 1, 2, 4, 8))):
        dice.choice(CHANGES)(dice, data, inputs)
    return bytes(data[:MAX_BYTES])


def _place(dice: Random, data: bytearray) -> int:
    """Mostly near the beginning or the end, where formats keep their headers."""
    if dice.random() < 0.5:
        return dice.randrange(min(len(data), 256) + 1) * dice.choice((1, -1)) % (len(data) + 1)
    return dice.randrange(len(data) + 1)


def _flip(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    at = _place(dice, data)
    if at < len(data):
        data[at] ^= 1 << dice.randrange(8)


def _number(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    size = dice.choice((1, 2, 4, 8))
    value = (dice.choice(EDGES) + dice.randrange(-2, 3)) % (1 << 8 * size)
    at = _place(dice, data)
    data[at : at + size] = value.to_bytes(size, dice.choice(("little", "big")))


def _token(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    at = _place(dice, data)
    token = dice.choice(TOKENS)
    data[at : at + dice.choice((0, 1, len(token)))] = token


def _digits(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    """Replace a number that is written in digits."""
    places = [at for at, byte in enumerate(data[:4096]) if chr(byte).isdigit()]
    if places:
        begin = end = dice.choice(places)
        while end < len(data) and chr(data[end]).isdigit():
            end += 1
        value = dice.choice((dice.choice(EDGES), -dice.choice(EDGES), dice.randrange(100)))
        data[begin:end] = str(value).encode()


def _remove(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    at = _place(dice, data)
    del data[at : at + dice.choice((1, 4, 64, len(data)))]


def _repeat(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    at, size = _place(dice, data), dice.randrange(1, 64)
    data[at:at] = data[at : at + size] * dice.choice((1, 2, 100))


def _splice(dice: Random, data: bytearray, inputs: list[bytes]) -> None:
    other = dice.choice(inputs)
    begin = dice.randrange(len(other) + 1)
    data[_place(dice, data) :] = other[begin:]


CHANGES = (_flip, _flip, _number, _number, _token, _digits, _remove, _repeat, _splice)
