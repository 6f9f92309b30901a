"""Segments of facts: the list that was compressed, or `Corrupt`.

The first byte says whether the rest is a segment, or the columns inside it.
"""

import zstandard

from strata.core.events import Envelope
from strata.store.event_batches import deflate
from strata.store.fact_segments import MAGIC, MAX_BYTES, compress, expand
from tests.fuzz.targets import refused_naming
from tests.store.kinds import CODEC, body


def seeds() -> list[bytes]:
    events = [
        Envelope(seq, 1_000 * seq, seq, body(seq), cause=(f"@{seq - 1}",) if seq % 3 else ())
        for seq in range(1, 40)
    ]
    segment = compress(CODEC.encode(events))
    columns = zstandard.ZstdDecompressor().decompress(segment.removeprefix(MAGIC))
    return [b"\x00" + columns, b"\x01" + segment]


def check(data: bytes) -> None:
    rest = data[1:]
    segment = rest if data[:1] == b"\x01" else MAGIC + deflate(rest)
    with refused_naming():
        expanded = expand(segment)
        assert len(expanded) <= MAX_BYTES
        CODEC.decode(expanded)
