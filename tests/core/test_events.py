"""The envelope and the codec: every kind survives encoding, unknown kinds are kept and not folded,
and damaged bytes raise `Corrupt` and nothing else."""

from typing import ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.barriers.barrier_rules import BarrierArrived
from strata.core.cluster import CODEC, apply, fold
from strata.core.decision import APPLY
from strata.core.events import Codec, Envelope, Fact, UnknownFact, event_id, position_id
from strata.core.state import Cluster
from strata.core.workers.worker_lifecycle import WorkerRegistered, WorkerStateChanged
from strata.errors import Corrupt, UnknownKind
from tests.core.scenario import every_kind
from tests.core.strategies import instances


def envelope(body, seq=0):
    return Envelope(seq, 1_700_000_000_000_000_000, 5, body, ("@1", "w.2.3"), "op-1")


def raw(body, seq=0):
    """A batch of one event, as bytes that this release did not write."""
    return msgspec.msgpack.encode([[seq, 1, 2, body, [], ""]])


@pytest.mark.parametrize("kind", CODEC.kinds.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_kind_survives_encoding(kind, data):
    events = [envelope(data.draw(instances(kind)))]
    assert CODEC.decode(CODEC.encode(events)) == events


def test_every_kind_has_a_rule_and_a_name_of_its_own():
    assert set(CODEC.kinds.values()) == set(APPLY)
    assert all(tag.partition("/")[0] == kind.__name__ for tag, kind in CODEC.kinds.items())


def test_fact_names_its_kind_and_leaves_defaults_out():
    body = WorkerRegistered(worker="a", incarnation=1, task="t", port=7)
    (event,) = msgspec.msgpack.decode(CODEC.encode([envelope(body)]))
    assert event[3] == {
        "kind": "WorkerRegistered",
        "worker": "a",
        "incarnation": 1,
        "task": "t",
        "port": 7,
    }


def test_unknown_kind_is_kept_beside_the_known():
    known = envelope(
        BarrierArrived(task="t", barrier="b", round=1, worker="w", incarnation=2, request=3)
    )
    batch = msgspec.msgpack.encode(
        [known, [1, 1, 2, {"kind": "MoonPhaseChanged", "phase": "full"}, ["@0"], "o"]]
    )
    first, second = CODEC.decode(batch)
    assert first == known
    assert second.body == UnknownFact(tag="MoonPhaseChanged", fields={"phase": "full"})
    assert (second.kind, second.seq, second.cause, second.op) == (
        "MoonPhaseChanged",
        1,
        ("@0",),
        "o",
    )


def test_newer_version_of_a_known_kind_is_unknown_and_keeps_its_name():
    (event,) = CODEC.decode(raw({"kind": "WorkerLost/2", "worker": "a"}))
    assert event.body == UnknownFact(tag="WorkerLost/2", fields={"worker": "a"})
    assert event.kind == "WorkerLost"


def test_unknown_kind_is_not_folded_and_the_error_has_a_hint():
    (event,) = CODEC.decode(raw({"kind": "MoonPhaseChanged"}, seq=7))
    state = Cluster()
    with pytest.raises(UnknownKind, match=r"position 7.*'MoonPhaseChanged'") as refused:
        apply(state, event)
    assert "newer Strata" in refused.value.hint
    assert state == Cluster()


def test_unknown_field_is_ignored():
    body = {"kind": "LimitHit", "limit": "x", "value": 1, "reason": "r", "new_in_2": [1]}
    (event,) = CODEC.decode(raw(body))
    assert (event.kind, event.body.limit) == ("LimitHit", "x")


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "LimitHit", "limit": 5, "value": 1, "reason": "r"},
        {"kind": "LimitHit", "limit": "x", "value": "many", "reason": "r"},
        {"kind": "LimitHit", "limit": "x"},
    ],
)
def test_wrong_or_missing_field_is_corrupt_and_the_kind_is_named(body):
    with pytest.raises(Corrupt, match="LimitHit"):
        CODEC.decode(raw(body))


GARBAGE = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "text": b"garbage",
    "nested too deep": b"\x91" * 50_000,
    "not a list": msgspec.msgpack.encode({"a": 1}),
    "a short envelope": msgspec.msgpack.encode([[0, 1]]),
    "a wrong envelope": msgspec.msgpack.encode([["0", 1, 2, {"kind": "X"}]]),
    "a number for a body": raw(5),
    "a list for a body": raw([1]),
    "a text for a body": raw("text"),
    "no body": raw(None),
    "a body without a kind": raw({"a": 1}),
    "a kind that is no text": raw({"kind": 5}),
    "text that is not UTF-8": raw({"kind": "X", "a": "text"}).replace(b"text", b"\xff\xfe\xfd\xfc"),
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_corrupt(payload):
    with pytest.raises(Corrupt):
        CODEC.decode(payload)


GOOD = CODEC.encode(every_kind().log)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_damaged_bytes_are_corrupt_or_a_batch_and_nothing_else(damage):
    payload = bytearray(GOOD)
    for at, byte in damage:
        payload[at] = byte
    try:
        events = CODEC.decode(bytes(payload))
    except Corrupt:
        return
    assert all(isinstance(event.body, Fact) for event in events)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(GOOD) - 1))
def test_batch_that_was_cut_is_corrupt(length):
    with pytest.raises(Corrupt):
        CODEC.decode(GOOD[:length])


def test_folding_everything_gives_what_deciding_gave():
    world = every_kind()
    assert fold(Cluster(), CODEC.decode(GOOD)) == world.state


def test_tags_are_the_fields_of_these_names_that_are_set():
    event = envelope(
        BarrierArrived(task="t", barrier="b", round=1, worker="w", incarnation=2, request=3)
    )
    assert event.tags() == {"task": "t", "barrier": "b", "worker": "w", "request": 3}
    assert envelope(WorkerRegistered(worker="a", incarnation=1, task="")).tags() == {"worker": "a"}


def test_step_that_is_not_known_is_no_tag():
    said = envelope(
        WorkerStateChanged(worker="a", incarnation=1, task="t", before="idle", after="training")
    )
    assert said.tags() == {"task": "t", "worker": "a"}
    said = envelope(
        WorkerStateChanged(
            worker="a", incarnation=1, task="t", before="idle", after="training", step=0
        )
    )
    assert said.tags() == {"task": "t", "worker": "a", "step": 0}


def test_events_are_referred_to_by_position_or_by_node():
    assert position_id(7) == "@7"
    assert event_id("worker-1", 2, 3) == "worker-1.2.3"


class Painted(Fact, frozen=True, tag="Painted"):
    """The first version: one word."""

    colour: str

    def upgrade(self) -> "PaintedAgain":
        return PaintedAgain(colours=[self.colour])


class PaintedAgain(Fact, frozen=True, tag="Painted/2"):
    """The second: several, so the field has another meaning."""

    version: ClassVar[int] = 2
    colours: list[str]


@pytest.fixture
def painted(monkeypatch):
    """A toy catalogue of two versions; the rule knows the newest only."""
    seen = []
    monkeypatch.setitem(APPLY, PaintedAgain, lambda state, fact, event: seen.append(fact.colours))
    return seen


def test_old_version_is_upgraded_before_it_is_folded(painted):
    codec = Codec([Painted, PaintedAgain])
    events = [
        envelope(Painted(colour="red")),
        envelope(PaintedAgain(colours=["blue", "green"]), seq=1),
    ]
    decoded = codec.decode(codec.encode(events))
    assert decoded == events
    assert [event.kind for event in decoded] == ["Painted", "Painted"]
    assert fold(Cluster(), decoded).position == 2
    assert painted == [["red"], ["blue", "green"]]


def test_newest_version_is_not_upgraded():
    fact = PaintedAgain(colours=["red"])
    assert fact.upgrade() is fact
