"""A record: one event of one node, with the time at which the timeline shows it.

References. A coordinator's fact is `p:<position>`, a worker's event `<node>/<incarnation>/<seq>`.
Inside the log causes are written shorter (`@position`, `node.incarnation.seq`); `ref_of_cause`
turns one into the other.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR, TAGS, Event, UnknownFact, position_id
from strata.errors import InvalidArgument

MS_NS = 1_000_000
SECOND_NS = 1_000_000_000

Key: TypeAlias = tuple[int, str, int, int]
"""The order of records: time, node, incarnation, seq."""

Place: TypeAlias = tuple[str, int, int]
"""What a reference names: node, incarnation, seq; a fact's incarnation is not part of its name."""


class Record(Struct, frozen=True, gc=False):
    """An event with its node and the time on the timeline's one clock."""

    at_ns: int
    node: str
    incarnation: int
    event: Event

    @property
    def key(self) -> Key:
        """Where it stands in the order of all records."""
        return self.at_ns, self.node, self.incarnation, self.event.seq

    @property
    def ref(self) -> str:
        """How it is referred to."""
        return reference(self.node, self.incarnation, self.event.seq)

    @property
    def kind(self) -> str:
        """The name of its kind, without the version."""
        return self.event.kind

    @property
    def version(self) -> int:
        """The version of its kind."""
        return int(tag_of(self.event).partition("/")[2] or 1)

    @property
    def known(self) -> bool:
        """Whether this release knows its kind."""
        return not isinstance(self.event.body, UnknownFact)

    @property
    def causes(self) -> list[str]:
        """The references of what led to it."""
        return [ref_of_cause(cause) for cause in self.event.cause]

    def get(self, field: str) -> object:
        """The value of a field; None when it has no such field."""
        body = self.event.body
        if isinstance(body, UnknownFact):
            return body.fields.get(field)
        return getattr(body, field, None)

    def text(self, field: str) -> str:
        """The value of a field as text; empty when it has none."""
        value = self.get(field)
        return "" if value is None else str(value)

    def fields(self) -> dict[str, object]:
        """All fields, as JSON can carry them; a field left at its default is there too."""
        body = self.event.body
        if isinstance(body, UnknownFact):
            return body.fields
        shown: dict[str, object] = msgspec.to_builtins(msgspec.structs.asdict(body))
        return shown

    def tags(self) -> dict[str, object]:
        """The fields by which records are found."""
        found = ((tag, self.get(tag)) for tag in TAGS)
        return {tag: value for tag, value in found if value not in (None, "", -1)}


def tag_of(event: Event) -> str:
    """The tag of an event's kind as it is written, with its version from the second on."""
    body = event.body
    return body.tag if isinstance(body, UnknownFact) else str(body.__struct_config__.tag)


def reference(node: str, incarnation: int, seq: int) -> str:
    """How an event is referred to."""
    return position_id(seq) if node == COORDINATOR else f"{node}/{incarnation}/{seq}"


def is_fact(ref: str) -> bool:
    """Whether a reference names a fact, and not a worker's event."""
    return ref.startswith("@") and "/" not in ref


def ref_of_cause(cause: str) -> str:
    """A cause as the log writes it, as a reference."""
    if cause.startswith("@"):
        return cause
    node, _, rest = cause.rpartition(".")
    node, _, incarnation = node.rpartition(".")
    return f"{node}/{incarnation}/{rest}"


def parse_ref(ref: str) -> Place:
    """What a reference names."""
    try:
        if is_fact(ref):
            return COORDINATOR, 0, int(ref[1:])
        node, incarnation, seq = ref.rsplit("/", 2)
        return node, int(incarnation), int(seq)
    except ValueError as error:
        raise InvalidArgument(
            f"{ref[:80]!r} does not name an event",
            hint="it looks like @1234 for a fact, or worker-1/3/57 for a worker's event",
        ) from error
