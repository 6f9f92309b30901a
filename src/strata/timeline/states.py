"""The state of the cluster at any moment: the newest snapshot before it, and the facts since.

A fact that this release does not know, or one that is damaged, cannot be folded in. Then the state
is given as far as it is sure, and it is said where that ends and why.
"""

from msgspec import Struct

from strata.core.cluster import apply
from strata.core.recovery import StepsCommitted
from strata.core.state import Cluster
from strata.errors import Corrupt, InvalidArgument, NotFound, StrataError, UnknownKind
from strata.store.base import EventReader
from strata.store.states import newest_state
from strata.timeline.timeline import Timeline


class Past(Struct, frozen=True):
    """The state after the facts before `position`; `doubt` says why it is not all of them."""

    state: Cluster
    position: int
    doubt: str = ""


def state_at(timeline: Timeline, position: int) -> Past:
    """The state after the first `position` facts."""
    return fold(timeline.reader, position)


def fold(reader: EventReader, position: int) -> Past:
    """The same, of a log that is not looked at as a timeline."""
    state = newest_state(reader, position)
    if state.position < reader.first:
        raise _without_beginning(reader, position)
    try:
        for event in reader.read(state.position, position):
            apply(state, event)
    except (Corrupt, UnknownKind) as error:
        return Past(state, state.position, error.message)
    except (KeyError, AttributeError, IndexError, ValueError) as error:
        # Only after facts that were not understood: `apply` is total over a whole log.
        return Past(state, state.position, f"the facts do not fit each other: {error!r}")
    if state.unknown_from is not None:
        return Past(state, state.unknown_from, f"facts from @{state.unknown_from} on were lost")
    return Past(state, state.position)


def _without_beginning(reader: EventReader, position: int) -> NotFound:
    """Why the state at a position of a part of a log is not known."""
    if position < reader.first:
        return NotFound(
            f"the facts before position {reader.first} are not in this log",
            hint="open the archive that holds them",
        )
    return NotFound(
        f"this run begins at position {reader.first}, and the state it begins from was written by "
        "another release",
        hint="read this run with the release that kept it",
    )


def position_of_step(timeline: Timeline, step: int, task: str = "") -> int:
    """The position right after a step of a task first counted."""
    for record in timeline.records(kinds={StepsCommitted.__name__}, node="coordinator"):
        body = record.event.body
        if not isinstance(body, StepsCommitted) or (task and body.task != task):
            continue
        if body.first <= step <= body.last:
            return record.event.seq + 1
    named = f" of {task}" if task else ""
    raise NotFound(f"step {step}{named} never counted in this log", hint="strata timeline shows it")


def resolve(
    timeline: Timeline,
    at_ns: int | None = None,
    position: int | None = None,
    step: int | None = None,
    task: str = "",
) -> tuple[int, int]:
    """A moment named in one of three ways, as (time, position); the end when none is given."""
    given = [value for value in (at_ns, position, step) if value is not None]
    if len(given) > 1:
        raise InvalidArgument(
            "a moment is named by a time, a position or a step", hint="give one of them"
        )
    if at_ns is not None:
        return at_ns, timeline.position_at(at_ns)
    if step is not None:
        position = position_of_step(timeline, step, task)
    if position is None:
        extent = timeline.extent()
        return extent.to_ns, extent.last
    if not 0 <= position <= timeline.position:
        raise InvalidArgument(
            f"position {position} is not in this log", hint=f"it ends at {timeline.position}"
        )
    return (timeline.time_of(position - 1) if position else timeline.extent().from_ns), position


def require_state(timeline: Timeline, position: int) -> Cluster:
    """The state, or why it is not known."""
    past = state_at(timeline, position)
    if past.doubt:
        raise StrataError(past.doubt, hint="ask for an earlier moment")
    return past.state
