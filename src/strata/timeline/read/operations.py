"""Operations: pairs of the events that start and end the same thing.

The events of one operation have the same `op`, or the same batch or checkpoint if `op` is empty.
The kind's name gives the phase: `…Started` and `…Submitted` start an operation, `…Completed` and
`…Finished` end it, `…Progress` is in between. A step is recorded once, at its end, with the time
of each part.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from strata.core.workers.worker_facts import KINDS, RunStarted, StepFinished
from strata.timeline.answers import OperationAnswer
from strata.timeline.read.records import Record, ms

Phase: TypeAlias = Literal["start", "progress", "end"]

SUFFIXES: dict[str, Phase] = {
    "Started": "start",
    "Submitted": "start",
    "Progress": "progress",
    "Completed": "end",
    "Finished": "end",
}

DOING = {
    "BlobUpload": "sending data to a peer",
    "BlobDownload": "fetching data from a peer",
    "DatasetOpen": "opening a dataset",
    "BatchDownload": "fetching a batch",
    "Training": "training a batch",
    "ResultDeserialize": "decoding a result",
    "ResultsApply": "applying the results of a round",
    "Exchange": "taking a step together with the other workers",
    "CheckpointDownload": "fetching a checkpoint",
    "ModelLoad": "loading the model",
    "ModelSerialization": "copying the model out",
    "Evaluation": "evaluating the model",
    "CheckpointWrite": "writing a checkpoint",
    "CheckpointUpload": "uploading a checkpoint",
    "Request": "waiting for the coordinator",
}


def _phases() -> Iterator[tuple[str, tuple[str, Phase]]]:
    for kind in KINDS:
        name = kind.__name__
        for suffix, phase in SUFFIXES.items():
            if name.endswith(suffix) and name.removesuffix(suffix) in DOING:
                yield name, (name.removesuffix(suffix), phase)
    yield "ResultsApplied", ("ResultsApply", "end")


PHASES: dict[str, tuple[str, Phase]] = dict(_phases())
"""From kind to the name of its operation and the phase."""

_BY_CLASS = {kind: PHASES[kind.__name__] for kind in KINDS if kind.__name__ in PHASES}
"""The same by class: looking up the kind's name would cost more than the rest of the pairing."""

LONG_KINDS = frozenset(
    kind for kind, (name, _) in PHASES.items() if name not in ("Training", "Request", "Exchange")
)


class Operation(Struct, frozen=True):
    """One operation of a worker; `start` or `end` is None if that event is not recorded (yet)."""

    name: str
    key: str
    node: str
    incarnation: int
    start: Record | None
    end: Record | None = None

    @property
    def ok(self) -> bool | None:
        """Whether it succeeded; None while it has not ended."""
        if self.end is None:
            return None
        ok = self.end.get("ok")
        return ok is None or bool(ok)

    @property
    def duration_ns(self) -> int | None:
        """The duration; None if the start or the end is unknown."""
        if self.start is None or self.end is None:
            return None
        return self.end.event.mono_ns - self.start.event.mono_ns

    @property
    def text(self) -> str:
        """A phrase that describes the operation."""
        first = self.start or self.end
        assert first is not None, "an operation has a start or an end"
        about = [first.text(tag) for tag in ("type", "barrier", "checkpoint", "blob", "batch")]
        named = " ".join(word for word in about if word)
        if first.text("barrier"):
            return f"waiting at barrier {first.text('barrier')}"
        return f"{DOING[self.name]} {named}".strip()

    def answer(self) -> OperationAnswer:
        """The operation as the API shows it."""
        start, end, took = self.start, self.end, self.duration_ns
        return OperationAnswer(
            op=self.key,
            text=self.text,
            started=start.ref if start else None,
            completed=end.ref if end else None,
            started_ms=ms(start.at_ns) if start else None,
            duration_ms=None if took is None else ms(took),
            ok=self.ok,
        )


def key_of(record: Record) -> tuple[str, Phase, str] | None:
    """The name of a record's operation, its phase, and the operation's key within the worker."""
    known = _BY_CLASS.get(record.event.body.__class__)
    if known is None:
        return None
    name, phase = known
    own = record.event.op or record.text("batch") or record.text("checkpoint")
    return name, phase, f"{name}:{own}"


class Pairing:
    """Pairs records, fed in order. `open` holds the operations that have not ended.

    `given_up` returns operations that never ended: they were started again, or their process was.
    """

    def __init__(self) -> None:
        self.open: dict[tuple[str, int, str], Operation] = {}
        self._given_up: list[Operation] = []

    def given_up(self) -> list[Operation]:
        """The operations given up since the last call."""
        found, self._given_up = self._given_up, []
        return found

    def feed(self, record: Record) -> Operation | None:
        """Add a record; returns the operation that it ends, if any."""
        if isinstance(record.event.body, RunStarted):
            self._give_up_all(record.node)
        known = key_of(record)
        if known is None:
            return None
        name, phase, key = known
        stream = (record.node, record.incarnation, key)
        if phase == "start":
            self._give_up(stream)
            self.open[stream] = Operation(
                name=name, key=key, node=record.node, incarnation=record.incarnation, start=record
            )
        elif phase == "end":
            begun = self.open.pop(stream, None)
            start = begun.start if begun is not None else None
            return Operation(
                name=name,
                key=key,
                node=record.node,
                incarnation=record.incarnation,
                start=start,
                end=record,
            )
        return None

    def _give_up_all(self, node: str) -> None:
        """Give up the open operations of a worker's earlier incarnation."""
        for stream in [stream for stream in self.open if stream[0] == node]:
            self._give_up(stream)

    def _give_up(self, stream: tuple[str, int, str]) -> None:
        before = self.open.pop(stream, None)
        if before is not None:
            self._given_up.append(before)


def newest_of(operations: Iterable[Operation]) -> tuple[Operation, Record] | None:
    """The operation that started last, with its start; None if no start is recorded."""
    begun = [(each, each.start) for each in operations if each.start is not None]
    return max(begun, key=lambda each: each[1].at_ns, default=None)


def step_parts(body: StepFinished) -> dict[str, float]:
    """The seconds of each part of a step, in the order in which they are drawn."""
    return {
        "data": max(body.data_s, 0.0),
        "compute": max(body.compute_s, 0.0),
        "communication": max(body.communication_s, 0.0),
        "wait": max(body.wait_s, 0.0),
    }


def operations(records: Iterable[Record]) -> Iterator[Operation]:
    """The operations of some records: each when it ends, then those still open."""
    pairing = Pairing()
    for record in records:
        ended = pairing.feed(record)
        yield from pairing.given_up()
        if ended is not None:
            yield ended
    yield from pairing.open.values()
