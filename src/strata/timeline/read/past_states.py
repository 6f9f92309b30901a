"""The state of the cluster at any moment: the newest snapshot before it, plus the facts since.

A damaged fact, or one of an unknown kind, cannot be applied. Then the state before that fact is
returned, with the reason.
"""

from msgspec import Struct

from strata.core.cluster import apply
from strata.core.generations.recovery import StepsCommitted
from strata.core.state import Cluster
from strata.errors import Corrupt, InvalidArgument, NotFound, StrataError, UnknownKind
from strata.store.event_store import EventReader
from strata.store.snapshots import newest_state
from strata.timeline.read.run_timeline import Timeline


class Past(Struct, frozen=True):
    """The state after the facts before `position`; `doubt` says why later facts are missing."""

    state: Cluster
    position: int
    doubt: str = ""


def state_at(timeline: Timeline, position: int) -> Past:
    """The state after the first `position` facts."""
    return fold(timeline.reader, position)


def fold(reader: EventReader, position: int) -> Past:
    """The state after the first `position` facts of a log."""
    state = newest_state(reader, position)
    if state.position < reader.first:
        raise _without_beginning(reader, position)
    try:
        for event in reader.read(state.position, position):
            apply(state, event)
    except (Corrupt, UnknownKind) as error:
        return Past(state, state.position, error.message)
    except (KeyError, AttributeError, IndexError, ValueError) as error:
        # Only after facts of unknown kinds: `apply` never fails on a complete log.
        return Past(state, state.position, f"the facts contradict each other: {error!r}")
    if state.unknown_from is not None:
        return Past(state, state.unknown_from, f"facts from @{state.unknown_from} on were lost")
    return Past(state, state.position)


def _without_beginning(reader: EventReader, position: int) -> NotFound:
    """The error for a log without the facts or the snapshot that the state needs."""
    if position < reader.first:
        return NotFound(
            f"the facts before position {reader.first} are not in this log",
            hint="open the archived run that has them",
        )
    return NotFound(
        f"this run begins at position {reader.first}, and another release wrote the snapshot there",
        hint="read this run with the release that archived it",
    )


def position_of_step(timeline: Timeline, step: int, task: str = "") -> int:
    """The position after the fact that first committed a step of a task."""
    for record in timeline.records(kinds={StepsCommitted.__name__}, node="coordinator"):
        body = record.event.body
        if not isinstance(body, StepsCommitted) or (task and body.task != task):
            continue
        if body.first <= step <= body.last:
            return record.event.seq + 1
    named = f" of {task}" if task else ""
    raise NotFound(
        f"step {step}{named} was never committed in this log", hint="see `strata timeline`"
    )


def resolve(
    timeline: Timeline,
    at_ns: int | None = None,
    position: int | None = None,
    step: int | None = None,
    task: str = "",
) -> tuple[int, int]:
    """A moment given as time, position or step, as (time, position); the end if none is given."""
    given = [value for value in (at_ns, position, step) if value is not None]
    if len(given) > 1:
        raise InvalidArgument(
            "a moment is a time, a position or a step", hint="give only one of them"
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
            f"the log has no position {position}", hint=f"it ends at {timeline.position}"
        )
    return (timeline.time_of(position - 1) if position else timeline.extent().from_ns), position


def require_state(timeline: Timeline, position: int) -> Cluster:
    """The state at a position; raises if it is not known."""
    past = state_at(timeline, position)
    if past.doubt:
        raise StrataError(past.doubt, hint="ask for an earlier moment")
    return past.state
