"""Why did this barrier stall: who arrived when, who was told when, and what were the late doing?"""

from typing import TypedDict

from msgspec import Struct

from strata.core.barriers import BarrierArrived, BarrierFailed, BarrierOpened, BarrierReleased
from strata.core.worker_facts import RequestCompleted, RequestSubmitted
from strata.core.workers import Worker
from strata.timeline.causes import causes_of
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.why.case import Answer, Case, Cost, Link, link, lost_s
from strata.timeline.why.worker_activity import activity
from strata.timeline.words import counted, lasting, seconds

STALL_S = 1.0
CLOCK_ERROR_NS = SECOND_NS // 20
TOLD_NS = 600 * SECOND_NS
SHOWN = 16
LATE = 3
ENDS = (BarrierReleased.__name__, BarrierFailed.__name__)


class Which(TypedDict):
    """The fields that name a round."""

    task: str
    barrier: str
    round: int


class Round(Struct, frozen=True):
    """One round of a barrier: its opening, the arrivals in order, and its end if it has one."""

    opened: Record
    name: str
    came: list[Record]
    ended: Record | None
    end_ns: int
    members: list[Worker]

    @property
    def missing(self) -> list[Worker]:
        """The members that had not arrived at the end, by rank."""
        there = {each.text("worker") for each in self.came}
        return [member for member in self.members if member.id not in there]


def barrier(case: Case, barrier: str, task: str = "", round: int | None = None) -> Answer:
    """Did it stall: was somebody late or missing?"""
    opened = case.require(
        case.last({BarrierOpened.__name__}, barrier=barrier, task=task, round=round),
        f"barrier {barrier}",
    )
    seen = _round(case, opened)
    cost = _cost(seen)
    findings = _who_saw_what(case, seen)
    if seen.ended is None:
        text = f"open: {counted(len(seen.came), 'worker')} waited for {_waited_for(case, seen)}"
        return Answer("open", text, [link(opened)], cost, findings)
    if isinstance(seen.ended.event.body, BarrierFailed):
        held = seconds(seen.end_ns - opened.at_ns)
        text = f"yes: it failed after {held}, without {_waited_for(case, seen)}"
        chain = [*_before(case, seen.ended), link(seen.ended)]
        return Answer("yes", text, chain, cost, findings)
    return _released(case, seen, seen.ended, cost, findings)


def _round(case: Case, opened: Record) -> Round:
    body = opened.event.body
    assert isinstance(body, BarrierOpened)
    which: Which = {"task": body.task, "barrier": body.barrier, "round": body.round}
    ended = case.first(ENDS, opened.at_ns, **which)
    end_ns = ended.at_ns if ended is not None else case.extent.to_ns
    came = case.all({BarrierArrived.__name__}, opened.at_ns, end_ns + 1, **which)
    position = ended.event.seq if ended is not None else case.timeline.position
    state = state_at(case.timeline, position).state
    task = state.tasks.get(body.task)
    names = list(task.members) if task is not None else []
    if ended is not None and isinstance(ended.event.body, BarrierFailed):
        names += [name for name in ended.event.body.missing if name not in names]
    members = [state.workers[name] for name in names if name in state.workers]
    return Round(
        opened=opened, name=body.barrier, came=came, ended=ended, end_ns=end_ns, members=members
    )


def _released(case: Case, seen: Round, ended: Record, cost: Cost, findings: list[str]) -> Answer:
    opened, came = seen.opened, seen.came
    held_s = lost_s(opened.at_ns, ended.at_ns)
    if held_s < STALL_S or not came:
        text = f"no: it was released {lasting(held_s)} after the first worker arrived"
        return Answer("no", text, [link(opened), link(ended)], cost, findings)
    if not any(each.kind == BarrierArrived.__name__ for each in causes_of(case.timeline, ended)):
        text = f"yes: it was held {lasting(held_s)} and released because {ended.text('reason')}"
        return Answer("yes", text, [*_before(case, ended), link(ended)], cost, findings)
    last = came[-1]
    before_ns = came[-2].at_ns if len(came) > 1 else opened.at_ns
    did = _did(case, seen, last.text("worker"), opened.at_ns, last.at_ns)
    text = (
        f"yes: {last.text('worker')} arrived last, {lasting(lost_s(before_ns, last.at_ns))} after "
        f"the worker before it and {lasting(held_s)} after the first; meanwhile it {did}"
    )
    return Answer("yes", text, [link(opened), link(last), link(ended)], cost, findings)


def _did(case: Case, seen: Round, name: str, since_ns: int, until_ns: int) -> str:
    """What kept a worker away."""
    worker = next((each for each in seen.members if each.id == name), None)
    if worker is None:
        return "was not a member of the task's generation"
    if not worker.alive:
        return f"was {worker.state}: {worker.reason}"
    return activity(case, name, worker.incarnation, since_ns, until_ns, seen.name).text


def _waited_for(case: Case, seen: Round) -> str:
    """The missing workers, with what the first of them did meanwhile."""
    names = [member.id for member in seen.missing]
    told = [
        f"{name}, which {_did(case, seen, name, seen.opened.at_ns, seen.end_ns)}"
        for name in names[:LATE]
    ]
    more = [f"{counted(len(names) - LATE, 'more worker')}"] if len(names) > LATE else []
    return "; ".join(told + more) or "a worker that is not known"


def _who_saw_what(case: Case, seen: Round) -> list[str]:
    """For each worker: when it arrived and when it was told the end, after the opening."""
    lines = [_line(case, seen, arrival) for arrival in seen.came[:SHOWN]]
    lines += [f"{each.id} did not arrive" for each in seen.missing[: SHOWN - len(lines)]]
    hidden = len(seen.came) + len(seen.missing) - len(lines)
    return lines + ([f"and {counted(hidden, 'more worker')}"] if hidden else [])


def _line(case: Case, seen: Round, arrival: Record) -> str:
    worker, since_ns = arrival.text("worker"), seen.opened.at_ns
    text = f"{worker} arrived after {seconds(arrival.at_ns - since_ns)}"
    told = _told(case, seen, arrival)
    if told is None:
        return f"{text}; when it was told the end is not recorded"
    how = "" if told.get("ok") is True else f" with an error ({told.text('error')})"
    return f"{text} and was told{how} after {seconds(max(told.at_ns - since_ns, 0))}"


def _told(case: Case, seen: Round, arrival: Record) -> Record | None:
    """The answer that a worker recorded for its arrival."""
    worker, latest_ns = arrival.text("worker"), arrival.at_ns + CLOCK_ERROR_NS
    asked = case.last(
        {RequestSubmitted.__name__}, latest_ns, node=worker, barrier=seen.name, type="arrive"
    )
    if asked is None or asked.incarnation != arrival.get("incarnation"):
        return None
    told = case.first(
        {RequestCompleted.__name__},
        asked.at_ns,
        seen.end_ns + TOLD_NS,
        node=worker,
        request=asked.get("request"),
    )
    return told if told is not None and told.incarnation == asked.incarnation else None


def _cost(seen: Round) -> Cost:
    total = sum(lost_s(arrival.at_ns, seen.end_ns) for arrival in seen.came)
    text = f"{counted(len(seen.came), 'worker')} waited {lasting(total)} in all"
    return Cost(total, len(seen.came), text)


def _before(case: Case, ended: Record) -> list[Link]:
    """What led to the end, without the end."""
    return case.ancestry(ended)[:-1]
