"""Why did this barrier stall, who was missing, what was it doing, and what did it cost?"""

from strata.core.barriers import BarrierArrived, BarrierFailed, BarrierOpened, BarrierReleased
from strata.timeline.activity import nodes_at, recent_before
from strata.timeline.records import Record
from strata.timeline.states import state_at
from strata.timeline.why.case import Answer, Case, Cost, Link, link, lost_s
from strata.timeline.words import counted, lasting, seconds

STALL_S = 1.0
ENDS = (BarrierReleased.__name__, BarrierFailed.__name__)


def barrier(case: Case, barrier: str, task: str = "", round: int | None = None) -> Answer:
    """Did it stall: was somebody late or missing?"""
    opened = case.require(
        case.last({BarrierOpened.__name__}, barrier=barrier, task=task, round=round),
        f"barrier {barrier}",
    )
    body = opened.event.body
    assert isinstance(body, BarrierOpened)
    which = (body.task, body.barrier, body.round)
    ended = case.first(ENDS, opened.at_ns, task=which[0], barrier=which[1], round=which[2])
    end_ns = ended.at_ns if ended is not None else case.extent.to_ns
    arrivals = case.all({BarrierArrived.__name__}, opened.at_ns, end_ns + 1, barrier=which[1])
    came = [each for each in arrivals if (each.get("task"), each.get("round")) == which[::2]]
    cost = _cost(came, end_ns)
    if ended is None:
        names = _missing(case, opened, came)
        doing = _doing(case, names, end_ns)
        text = f"open: {counted(len(came), 'worker')} wait for {', '.join(names) or 'nobody known'}"
        return Answer("open", f"{text}{doing}", [link(opened)], cost)
    if isinstance(ended.event.body, BarrierFailed):
        names = ended.event.body.missing
        doing = _doing(case, names, end_ns - 1)
        text = f"yes: it failed after {seconds(end_ns - opened.at_ns)}; missing: {', '.join(names)}"
        return Answer("yes", f"{text}{doing}", [*_before(case, ended), link(ended)], cost)
    return _released(case, opened, came, ended, cost)


def _released(case: Case, opened: Record, came: list[Record], ended: Record, cost: Cost) -> Answer:
    held_s = lost_s(opened.at_ns, ended.at_ns)
    if held_s < STALL_S or not came:
        text = f"no: everyone was there within {lasting(held_s)}"
        return Answer("no", text, [link(opened), link(ended)], cost)
    last = came[-1]
    name = last.text("worker")
    lead_s = lost_s(came[-2].at_ns if len(came) > 1 else opened.at_ns, last.at_ns)
    doing = _doing(case, [name], last.at_ns - 1)
    if not ended.text("reason").startswith("everyone"):
        text = f"yes: it was held {lasting(held_s)} and released because {ended.text('reason')}"
        return Answer("yes", text, [*_before(case, ended), link(ended)], cost)
    text = (
        f"yes: {name} came last, {lasting(lead_s)} after the one before and "
        f"{lasting(held_s)} after the first{doing}"
    )
    chain = [link(opened), link(last), link(ended)]
    return Answer("yes", text, chain, cost)


def _cost(came: list[Record], end_ns: int) -> Cost:
    waited = [lost_s(arrival.at_ns, end_ns) for arrival in came]
    total = sum(waited)
    text = f"{counted(len(came), 'worker')} waited {lasting(total)} in all"
    return Cost(total, len(came), text)


def _missing(case: Case, opened: Record, came: list[Record]) -> list[str]:
    state = state_at(case.timeline, case.timeline.position).state
    task = state.tasks.get(opened.text("task"))
    there = {arrival.text("worker") for arrival in came}
    return [name for name in (task.members if task else []) if name not in there]


def _doing(case: Case, names: list[str], at_ns: int) -> str:
    """What the missing were doing at a moment, by their own events."""
    if not names:
        return ""
    state = state_at(case.timeline, case.timeline.position_at(at_ns)).state
    recent = recent_before(case.timeline, at_ns, state)
    nodes = {node.id: node for node in nodes_at(case.timeline, state, at_ns, recent)}
    told = [f"{name} was {nodes[name].doing}" for name in names[:3] if name in nodes]
    return f"; {'; '.join(told)}" if told else ""


def _before(case: Case, ended: Record) -> list[Link]:
    """What led to the end, without the end."""
    return case.ancestry(ended)[:-1]
