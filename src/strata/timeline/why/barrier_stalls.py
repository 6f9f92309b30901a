"""Why did this barrier stall: when did workers arrive, and what were the late ones doing?"""

from typing import TypedDict

from msgspec import Struct

from strata.core.barriers.barrier_rules import (
    BarrierArrived,
    BarrierFailed,
    BarrierOpened,
    BarrierReleased,
)
from strata.core.state import Worker
from strata.core.workers.worker_facts import RequestCompleted, RequestSubmitted
from strata.timeline.answers import Cost
from strata.timeline.read.causes import causes_of
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, lasting, seconds
from strata.timeline.why.investigation import Answer, Link, LogSearch, link, lost_s
from strata.timeline.why.worker_activity import activity

STALL_S = 1.0
CLOCK_ERROR_NS = SECOND_NS // 20
ANSWER_NS = 600 * SECOND_NS
SHOWN = 16
LATE = 3
ENDS = (BarrierReleased.__name__, BarrierFailed.__name__)


class Which(TypedDict):
    """The fields that name a round."""

    task: str
    barrier: str
    round: int


class Round(Struct, frozen=True):
    """One round of a barrier: its start, the arrivals in order, and its end, if any."""

    opened: Record
    name: str
    came: list[Record]
    ended: Record | None
    end_ns: int
    members: list[Worker]

    @property
    def missing(self) -> list[Worker]:
        """The members that did not arrive, by rank."""
        there = {each.text("worker") for each in self.came}
        return [member for member in self.members if member.id not in there]


def barrier(search: LogSearch, barrier: str, task: str = "", round: int | None = None) -> Answer:
    """Did the barrier stall because a worker was late or missing?"""
    opened = search.require(
        search.last({BarrierOpened.__name__}, barrier=barrier, task=task, round=round),
        f"barrier {barrier}",
    )
    seen = _round(search, opened)
    cost = _cost(seen)
    findings = _arrivals(search, seen)
    if seen.ended is None:
        text = f"open: {counted(len(seen.came), 'worker')} waited for {_waited_for(search, seen)}"
        return Answer(verdict="open", text=text, chain=[link(opened)], cost=cost, findings=findings)
    if isinstance(seen.ended.event.body, BarrierFailed):
        held = seconds(seen.end_ns - opened.at_ns)
        text = f"yes: it failed after {held}, without {_waited_for(search, seen)}"
        chain = [*_before(search, seen.ended), link(seen.ended)]
        return Answer(verdict="yes", text=text, chain=chain, cost=cost, findings=findings)
    return _released(search, seen, seen.ended, cost, findings)


def _round(search: LogSearch, opened: Record) -> Round:
    body = opened.event.body
    assert isinstance(body, BarrierOpened)
    which: Which = {"task": body.task, "barrier": body.barrier, "round": body.round}
    ended = search.first(ENDS, opened.at_ns, **which)
    end_ns = ended.at_ns if ended is not None else search.extent.to_ns
    came = search.all({BarrierArrived.__name__}, opened.at_ns, end_ns + 1, **which)
    position = ended.event.seq if ended is not None else search.timeline.position
    state = state_at(search.timeline, position).state
    task = state.tasks.get(body.task)
    names = list(task.members) if task is not None else []
    if ended is not None and isinstance(ended.event.body, BarrierFailed):
        names += [name for name in ended.event.body.missing if name not in names]
    members = [state.workers[name] for name in names if name in state.workers]
    return Round(
        opened=opened, name=body.barrier, came=came, ended=ended, end_ns=end_ns, members=members
    )


def _released(
    search: LogSearch, seen: Round, ended: Record, cost: Cost, findings: list[str]
) -> Answer:
    opened, came = seen.opened, seen.came
    held_s = lost_s(opened.at_ns, ended.at_ns)
    if held_s < STALL_S or not came:
        text = f"no: it was released {lasting(held_s)} after the first worker arrived"
        return Answer(
            verdict="no", text=text, chain=[link(opened), link(ended)], cost=cost, findings=findings
        )
    if not any(each.kind == BarrierArrived.__name__ for each in causes_of(search.timeline, ended)):
        text = f"yes: it was held {lasting(held_s)} and released because {ended.text('reason')}"
        return Answer(
            verdict="yes",
            text=text,
            chain=[*_before(search, ended), link(ended)],
            cost=cost,
            findings=findings,
        )
    last = came[-1]
    before_ns = came[-2].at_ns if len(came) > 1 else opened.at_ns
    did = _did(search, seen, last.text("worker"), opened.at_ns, last.at_ns)
    text = (
        f"yes: {last.text('worker')} arrived last, {lasting(lost_s(before_ns, last.at_ns))} after "
        f"the worker before it and {lasting(held_s)} after the first; meanwhile it {did}"
    )
    return Answer(
        verdict="yes",
        text=text,
        chain=[link(opened), link(last), link(ended)],
        cost=cost,
        findings=findings,
    )


def _did(search: LogSearch, seen: Round, name: str, since_ns: int, until_ns: int) -> str:
    """What kept a worker from arriving."""
    worker = next((each for each in seen.members if each.id == name), None)
    if worker is None:
        return "was not a member of the task's generation"
    if not worker.alive:
        return f"was {worker.state}: {worker.reason}"
    return activity(search, name, worker.incarnation, since_ns, until_ns, seen.name).text


def _waited_for(search: LogSearch, seen: Round) -> str:
    """The missing workers, with what the first ones did meanwhile."""
    names = [member.id for member in seen.missing]
    named = [
        f"{name}, which {_did(search, seen, name, seen.opened.at_ns, seen.end_ns)}"
        for name in names[:LATE]
    ]
    more = [f"{counted(len(names) - LATE, 'more worker')}"] if len(names) > LATE else []
    return "; ".join(named + more) or "an unknown worker"


def _arrivals(search: LogSearch, seen: Round) -> list[str]:
    """One line per worker: when it arrived and when it was released, after the start."""
    lines = [_line(search, seen, arrival) for arrival in seen.came[:SHOWN]]
    lines += [f"{each.id} did not arrive" for each in seen.missing[: SHOWN - len(lines)]]
    hidden = len(seen.came) + len(seen.missing) - len(lines)
    return lines + ([f"and {counted(hidden, 'more worker')}"] if hidden else [])


def _line(search: LogSearch, seen: Round, arrival: Record) -> str:
    worker, since_ns = arrival.text("worker"), seen.opened.at_ns
    text = f"{worker} arrived after {seconds(arrival.at_ns - since_ns)}"
    if seen.ended is None:
        return f"{text} and waits"
    answer = _answer_to(search, seen, arrival)
    if answer is None:
        return f"{text}; its release is not recorded"
    how = "" if answer.get("ok") is True else f" with an error ({answer.text('error')})"
    # Two clocks: a worker gets the answer after the coordinator has decided it.
    answered_ns = max(answer.at_ns, seen.end_ns)
    return f"{text} and was released{how} after {seconds(answered_ns - since_ns)}"


def _answer_to(search: LogSearch, seen: Round, arrival: Record) -> Record | None:
    """The answer to a worker's arrival, as the worker recorded it."""
    worker, latest_ns = arrival.text("worker"), arrival.at_ns + CLOCK_ERROR_NS
    asked = search.last(
        {RequestSubmitted.__name__}, latest_ns, node=worker, barrier=seen.name, type="arrive"
    )
    if asked is None or asked.incarnation != arrival.get("incarnation"):
        return None
    answer = search.first(
        {RequestCompleted.__name__},
        asked.at_ns,
        seen.end_ns + ANSWER_NS,
        node=worker,
        request=asked.get("request"),
    )
    return answer if answer is not None and answer.incarnation == asked.incarnation else None


def _cost(seen: Round) -> Cost:
    total = sum(lost_s(arrival.at_ns, seen.end_ns) for arrival in seen.came)
    text = f"{counted(len(seen.came), 'worker')} waited {lasting(total)} in all"
    return Cost(total, len(seen.came), text)


def _before(search: LogSearch, ended: Record) -> list[Link]:
    """The causes of the end, without the end itself."""
    return search.ancestry(ended)[:-1]
