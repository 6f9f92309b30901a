"""Batches of events that workers send: the events, or an error that names the batch.

The first byte says whether the rest is the payload as sent, or the list of events inside it.
"""

from strata.core.events import Envelope
from strata.core.record.event_codec import CODEC
from strata.core.workers.worker_facts import StepFinished, TrainingStarted
from strata.store.event_batches import Batch, deflate, parts, unpack
from tests.fuzz.targets import refused_naming

COUNT = 3
EVENTS = [
    Envelope(0, 5, 5, TrainingStarted(batch="0", step=0), cause=()),
    Envelope(
        1,
        6,
        6,
        StepFinished(step=0, data_s=0.1, compute_s=1.0, communication_s=0.0, wait_s=0.0),
        cause=("@7",),
    ),
    Envelope(2, 7, 7, TrainingStarted(batch="1", step=1), cause=()),
]


def seeds() -> list[bytes]:
    encoded = CODEC.encode(list(EVENTS))
    return [b"\x00" + encoded, b"\x01" + deflate(encoded)]


def check(data: bytes) -> None:
    as_sent, rest = data[:1] == b"\x01", data[1:]
    batch = Batch(
        node="w",
        incarnation=1,
        first_seq=0,
        count=COUNT,
        wall_from_ns=5,
        wall_to_ns=7,
        kinds=("StepFinished", "TrainingStarted"),
        payload=rest if as_sent else deflate(rest),
    )
    with refused_naming("events w.1.0 to 2"):
        events = unpack(CODEC, batch)
        assert [event.seq for event in events] == [0, 1, 2]
        CODEC.encode(events)
    with refused_naming("events w.1.0 to 2"):
        for part in parts(batch, [(0, 1), (2, 3)]):
            assert part.count == 1
