"""Facts, their envelope, and the codec.

A *fact* says in the past tense what happened; it is a frozen Struct and its class name is its kind.
An *event* is a fact in its envelope: when it was recorded, and why. A *command* asks for something;
deciding on it yields facts or a typed refusal.

Identity. `seq` is dense per node and incarnation, so that a gap is visible and a resend is
recognised. Node and incarnation are the same for all events of one stored batch and are stored with
it, not in each event. The coordinator's facts are numbered by their global position in the log,
across its incarnations. An event is referred to as `node.incarnation.seq`, a coordinator's fact as
`@position`.

Tags. A fact's tags (`task`, `worker`, `step`, `epoch`, `batch`, `shard`, `checkpoint`, `barrier`,
`blob`, `message`, `request`) are its fields with these names. They are written once, in the body.

A new kind. Write the class beside the rules of its concept (or in `worker_facts`, if workers record
it), and record it where it happens. Then `make docs` and `python -m tests.core.golden` write what
follows from the class. Tests name whatever is missing: the sentence, an emitter, or, for a kind of
the coordinator, a place in `tests/core/scenario.py`.

Evolution. Bodies are encoded as maps by field name: a field may be added with a default, and a
reader that does not know a kind still shows its fields. A change that gives an old field a new
meaning makes a new version: the new class has the tag `Kind/2`; the old class stays, registered by
`outdated`, with an `upgrade` to the new one.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import ClassVar, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from strata.errors import UNDECODABLE, Corrupt, UnknownKind

COORDINATOR = "coordinator"

TAGS = (
    "task",
    "worker",
    "step",
    "epoch",
    "batch",
    "shard",
    "checkpoint",
    "barrier",
    "blob",
    "message",
    "request",
)


class Now(Struct, frozen=True, gc=False):
    """The time of a decision: wall clock to show, monotonic clock to measure."""

    wall_ns: int
    mono_ns: int


class Fact(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag=True):
    """Base of every kind of fact.

    A new kind is one class: its docstring, fields and `sentence` make its rows in docs/EVENTS.md,
    its JSON Schema and its line in the timeline. `sentence` is a template over the fields (syntax:
    `timeline/read/sentences`). With `lane_mark` the timeline marks it in the lane of its
    worker. A kind that comes `after_loss` says what the state is from there on, though facts before
    it are lost.
    """

    sentence: ClassVar[str] = ""
    lane_mark: ClassVar[bool] = False
    after_loss: ClassVar[bool] = False

    def upgrade(self) -> "Fact":
        """This fact in the newest version of its kind."""
        return self


class UnknownFact(Fact, frozen=True, kw_only=True):
    """A fact of a kind or version that this release does not know: kept and shown, not folded."""

    tag: str
    fields: dict[str, object]


Body = TypeVar("Body", bound=Fact, covariant=True)


class Envelope(Struct, Generic[Body], frozen=True, gc=False, array_like=True):
    """A fact in its envelope. `op` pairs the start, progress and end of one operation."""

    seq: int
    wall_ns: int
    mono_ns: int
    body: Body
    cause: tuple[str, ...] = ()
    op: str = ""

    @property
    def kind(self) -> str:
        """The name of the fact's kind, without its version."""
        return kind_of(self.body)

    def tags(self) -> dict[str, object]:
        """The body's fields that are tags and are set."""
        found = ((tag, getattr(self.body, tag, None)) for tag in TAGS)
        return {tag: value for tag, value in found if value not in (None, "", -1)}


Event: TypeAlias = Envelope[Fact]


class Command(Struct, frozen=True, gc=False, kw_only=True):
    """Base of every request to the core. `cause` names the events that led to it."""

    cause: tuple[str, ...] = ()


def kind_of(body: Fact) -> str:
    """The name of a fact's kind, without its version."""
    if isinstance(body, UnknownFact):
        return body.tag.partition("/")[0]
    return str(body.__struct_config__.tag).partition("/")[0]


def kinds_in(namespace: Mapping[str, object]) -> tuple[type[Fact], ...]:
    """The kinds that a module defines, given its `globals()`; a class with subclasses is a base."""
    return tuple(
        kind
        for kind in namespace.values()
        if isinstance(kind, type) and issubclass(kind, Fact) and not kind.__subclasses__()
        if kind.__module__ == namespace["__name__"]
    )


def position_id(position: int) -> str:
    """The reference to a fact of the coordinator."""
    return f"@{position}"


def event_id(node: str, incarnation: int, seq: int) -> str:
    """The reference to an event of a worker."""
    return f"{node}.{incarnation}.{seq}"


class Codec:
    """Encoder and decoder of events, for one catalogue of kinds.

    Decoding never fails on an unknown kind: such a fact is decoded as `UnknownFact`, so that
    readers can show it. Folding refuses it (see `require_known`).
    """

    def __init__(self, kinds: Iterable[type[Fact]]) -> None:
        self.kinds = {str(kind.__struct_config__.tag): kind for kind in kinds}
        known = reduce(or_, self.kinds.values())
        self._body: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(known)
        self._events: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(
            list[Envelope[known]]  # type: ignore[valid-type]
        )
        self._loose = msgspec.msgpack.Decoder(list[_LooseEvent])
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, events: list[Event]) -> bytes:
        """The events of one batch as bytes."""
        return self._encoder.encode(events)

    def decode(self, payload: bytes | memoryview) -> list[Event]:
        """The events of one batch; raises `Corrupt` when the bytes are not a batch."""
        try:
            return self._events.decode(payload)
        except msgspec.ValidationError:
            return self._decode_loosely(payload)
        except UNDECODABLE as error:
            raise Corrupt(f"a batch of events cannot be decoded: {error}") from error

    def _decode_loosely(self, payload: bytes | memoryview) -> list[Event]:
        try:
            loose = self._loose.decode(payload)
        except UNDECODABLE as error:
            raise Corrupt(f"a batch of events cannot be decoded: {error}") from error
        return [
            Envelope(
                seq=e.seq,
                wall_ns=e.wall_ns,
                mono_ns=e.mono_ns,
                body=self._decode_body(e.body),
                cause=e.cause,
                op=e.op,
            )
            for e in loose
        ]

    def _decode_body(self, raw: msgspec.Raw) -> Fact:
        tag: object = "unknown"
        try:
            fields = _decode_map(raw)
            tag = fields.pop("kind", None)
            if isinstance(tag, str) and tag not in self.kinds:
                return UnknownFact(tag=tag, fields=fields)
            return self._body.decode(raw)
        except UNDECODABLE as error:
            raise Corrupt(f"a fact of kind {tag} cannot be decoded: {error}") from error


_decode_map = msgspec.msgpack.Decoder(dict[str, object]).decode


class _LooseEvent(Struct, array_like=True):
    seq: int
    wall_ns: int
    mono_ns: int
    body: msgspec.Raw
    cause: tuple[str, ...] = ()
    op: str = ""


def require_known(body: Fact, position: int) -> None:
    """Refuse to fold a fact that this release does not understand."""
    if isinstance(body, UnknownFact):
        raise UnknownKind(
            f"the fact at position {position} has the unknown kind {body.tag!r}",
            hint="the log was written by a newer Strata; start that version, the log is unchanged",
        )


AnyFact = TypeVar("AnyFact", bound=Fact)


OUTDATED: list[type[Fact]] = []


def outdated(kind: type[AnyFact]) -> type[AnyFact]:
    """Register a kind that is no longer recorded, only read and upgraded."""
    OUTDATED.append(kind)
    return kind
