"""Records: one event of one node, with its time on the timeline's clock.

References. A coordinator's fact is `@<position>`, a worker's event `<node>/<incarnation>/<seq>`.
The log writes causes differently (`@position`, `node.incarnation.seq`); `ref_of_cause` converts.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from strata.core.events import COORDINATOR, TAGS, Event, UnknownFact, position_id
from strata.errors import InvalidArgument

MS_NS = 1_000_000
SECOND_NS = 1_000_000_000
LAST_MS = 8e12
FLOAT_NS = 300

Key: TypeAlias = tuple[int, str, int, int]
"""The sort key of records: time, node, incarnation, seq."""

Place: TypeAlias = tuple[str, int, int]
"""A parsed reference: node, incarnation, seq. The incarnation of a fact is always 0."""


class Record(Struct, frozen=True, gc=False):
    """An event with its node and its time on the timeline's clock."""

    at_ns: int
    node: str
    incarnation: int
    event: Event

    @property
    def key(self) -> Key:
        """The sort key among all records."""
        return self.at_ns, self.node, self.incarnation, self.event.seq

    @property
    def ref(self) -> str:
        """The reference that names this event."""
        return reference(self.node, self.incarnation, self.event.seq)

    @property
    def kind(self) -> str:
        """The name of the kind, without its version."""
        return self.event.kind

    @property
    def version(self) -> int:
        """The version of the kind."""
        return int(tag_of(self.event).partition("/")[2] or 1)

    @property
    def known(self) -> bool:
        """Whether this release knows the kind."""
        return not isinstance(self.event.body, UnknownFact)

    @property
    def causes(self) -> list[str]:
        """The references of the causes."""
        return [ref_of_cause(cause) for cause in self.event.cause]

    def get(self, field: str) -> object:
        """The value of a field; None if there is no such field."""
        body = self.event.body
        if isinstance(body, UnknownFact):
            return body.fields.get(field)
        return getattr(body, field, None)

    def text(self, field: str) -> str:
        """The value of a field as text; empty if there is no such field."""
        value = self.get(field)
        return "" if value is None else str(value)

    def fields(self) -> dict[str, object]:
        """All fields as JSON values, including those with default values."""
        body = self.event.body
        if isinstance(body, UnknownFact):
            return body.fields
        shown: dict[str, object] = msgspec.to_builtins(msgspec.structs.asdict(body))
        return shown

    def tags(self) -> dict[str, object]:
        """The indexed fields that have a value."""
        found = ((tag, self.get(tag)) for tag in TAGS)
        return {tag: value for tag, value in found if value not in (None, "", -1)}


def tag_of(event: Event) -> str:
    """The tag of an event's kind as stored; versions from 2 on are part of it."""
    body = event.body
    return body.tag if isinstance(body, UnknownFact) else str(body.__struct_config__.tag)


def reference(node: str, incarnation: int, seq: int) -> str:
    """The reference of an event."""
    return position_id(seq) if node == COORDINATOR else f"{node}/{incarnation}/{seq}"


def is_fact(ref: str) -> bool:
    """Whether a reference names a coordinator's fact."""
    return ref.startswith("@") and "/" not in ref


def ref_of_cause(cause: str) -> str:
    """Convert a cause as the log writes it to a reference."""
    if cause.startswith("@"):
        return cause
    node, _, rest = cause.rpartition(".")
    node, _, incarnation = node.rpartition(".")
    return f"{node}/{incarnation}/{rest}"


def parse_ref(ref: str) -> Place:
    """Parse a reference."""
    try:
        if is_fact(ref):
            return COORDINATOR, 0, int(ref[1:])
        node, incarnation, seq = ref.rsplit("/", 2)
        return node, int(incarnation), int(seq)
    except ValueError as error:
        raise InvalidArgument(
            f"{ref[:80]!r} is not an event reference",
            hint="use @1234 for a fact, worker-1/3/57 for a worker's event",
        ) from error


def decode_cursor(cursor: str) -> Key | None:
    """The key of the last record of a page; None for an empty cursor."""
    if not cursor:
        return None
    try:
        at_ns, incarnation, seq, node = cursor.split(":", 3)
        return int(at_ns), node, int(incarnation), int(seq)
    except ValueError as error:
        raise InvalidArgument(
            f"invalid cursor {cursor[:40]!r}", hint="start again without a cursor"
        ) from error


def encode_cursor(record: Record | None) -> str:
    """The cursor of the page after a record."""
    if record is None:
        return ""
    at_ns, node, incarnation, seq = record.key
    return f"{at_ns}:{incarnation}:{seq}:{node}"


def ms(moment_ns: int) -> float:
    """Nanoseconds as milliseconds."""
    return moment_ns / MS_NS


def ns(moment_ms: float) -> int:
    """Unix milliseconds as nanoseconds, rounded up by the precision of a float (about 0.25 µs)."""
    if not 0 <= moment_ms <= LAST_MS:
        raise InvalidArgument(f"{moment_ms} is not a valid time", hint="use Unix milliseconds")
    return int(moment_ms * MS_NS) + FLOAT_NS
