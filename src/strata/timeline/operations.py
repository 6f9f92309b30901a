"""Operations: what was started and ended belongs together.

The events of one operation carry the same `op`; where they carry none, the same batch. The kind's
name says which they are: `…Started` and `…Submitted` begin, `…Completed` and `…Finished` end, and
`…Progress` is in between. A step is recorded once, at its end, with how long each part of it took.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from strata.core.worker_facts import KINDS, RunStarted
from strata.timeline.records import Record

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
"""From kind to the operation it belongs to, and which part of it this is."""

_BY_CLASS = {kind: PHASES[kind.__name__] for kind in KINDS if kind.__name__ in PHASES}
"""The same by class: naming each event's kind would cost more than the rest of pairing it."""

LONG_KINDS = frozenset(
    kind for kind, (name, _) in PHASES.items() if name not in ("Training", "Request", "Exchange")
)


class Operation(Struct, frozen=True):
    """Something a worker did. An end that is missing was not recorded, or is still to come."""

    name: str
    key: str
    node: str
    incarnation: int
    start: Record | None
    end: Record | None = None

    @property
    def ok(self) -> bool | None:
        """Whether it went well; None while nobody said."""
        if self.end is None:
            return None
        told = self.end.get("ok")
        return told is None or bool(told)

    @property
    def duration_ns(self) -> int | None:
        """How long it took."""
        if self.start is None or self.end is None:
            return None
        return self.end.event.mono_ns - self.start.event.mono_ns

    @property
    def text(self) -> str:
        """What it is about, in words."""
        first = self.start or self.end
        assert first is not None, "an operation is known by its start or its end"
        about = [first.text(tag) for tag in ("type", "barrier", "checkpoint", "blob", "batch")]
        named = " ".join(word for word in about if word)
        if first.text("barrier"):
            return f"waiting at barrier {first.text('barrier')}"
        return f"{DOING[self.name]} {named}".strip()


def key_of(record: Record) -> tuple[str, Phase, str] | None:
    """The operation a record belongs to, its phase, and what identifies it on its node."""
    known = _BY_CLASS.get(record.event.body.__class__)
    if known is None:
        return None
    name, phase = known
    own = record.event.op or record.text("batch") or record.text("checkpoint")
    return name, phase, f"{name}:{own}"


class Pairing:
    """Takes records in order and pairs them; what has not ended is in `open`.

    What never ended, because it was begun again or its process was, is handed out by `given_up`.
    """

    def __init__(self) -> None:
        self.open: dict[tuple[str, int, str], Operation] = {}
        self._given_up: list[Operation] = []

    def given_up(self) -> list[Operation]:
        """What was found to have been given up since the last call."""
        found, self._given_up = self._given_up, []
        return found

    def feed(self, record: Record) -> Operation | None:
        """The operation that this record ends, if it ends one."""
        if isinstance(record.event.body, RunStarted):
            self._begin_anew(record.node)
        known = key_of(record)
        if known is None:
            return None
        name, phase, key = known
        stream = (record.node, record.incarnation, key)
        if phase == "start":
            self._give_up(stream)
            self.open[stream] = Operation(name, key, record.node, record.incarnation, record)
        elif phase == "end":
            begun = self.open.pop(stream, None)
            start = begun.start if begun is not None else None
            return Operation(name, key, record.node, record.incarnation, start, record)
        return None

    def _begin_anew(self, node: str) -> None:
        """What an earlier incarnation had under way ended with it."""
        for stream in [stream for stream in self.open if stream[0] == node]:
            self._give_up(stream)

    def _give_up(self, stream: tuple[str, int, str]) -> None:
        before = self.open.pop(stream, None)
        if before is not None:
            self._given_up.append(before)


def operations(records: Iterable[Record]) -> Iterator[Operation]:
    """The operations of some records: each as it ends, then those that stayed open."""
    pairing = Pairing()
    for record in records:
        ended = pairing.feed(record)
        yield from pairing.given_up()
        if ended is not None:
            yield ended
    yield from pairing.open.values()
