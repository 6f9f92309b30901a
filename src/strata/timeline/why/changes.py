"""Why did the task change state, or the generation; why did a shard move, and was it minimal?"""

from strata.core.datasets import AssignmentChanged
from strata.core.sharding import assign
from strata.timeline.records import Record
from strata.timeline.states import state_at
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, link, lost_s
from strata.timeline.words import counted, lasting, sentence

KINDS = frozenset({"TaskStateChanged", "GenerationChanged"})


def changed(
    case: Case,
    task: str,
    state: str = "",
    generation: int | None = None,
    time_ms: float | None = None,
) -> Answer:
    """The chain of causes behind a change of a task's state or generation."""
    until_ns = case.until(time_ms)
    kinds = {"GenerationChanged"} if generation is not None else KINDS
    if state:
        kinds = {"TaskStateChanged"}
    found = case.last(kinds, until_ns, task=task, after=state, generation=generation)
    record = case.require(found, f"such a change of task {task}")
    chain = case.ancestry(record)
    root = chain[0]
    because = "" if root.record is record else f"; it began with: {root.text}"
    text = f"yes: {sentence(record)}{because}"
    if len(chain) == 1 and not record.text("reason"):
        return Answer("unknown", f"unknown: {sentence(record)}, and no cause is recorded", chain)
    return Answer("yes", text, chain, _until_running(case, record))


def _until_running(case: Case, record: Record) -> Cost:
    """How long the task did not train because of it."""
    again = case.first({"RecoveryChosen"}, record.at_ns, task=record.text("task"))
    if again is None or record.text("after") in ("running", "completed"):
        return Cost()
    size = record.get("world_size")
    workers = size if isinstance(size, int) else 1
    idle_s = lost_s(record.at_ns, again.at_ns)
    return Cost(idle_s * workers, workers, f"{lasting(idle_s)} until training went on")


def moved(
    case: Case, shard: int, dataset: str = "", task: str = "", time_ms: float | None = None
) -> Answer:
    """Why did it move; was the move the least that keeps everyone's share fair?"""
    until_ns = case.until(time_ms)
    found = None
    kinds = {AssignmentChanged.__name__}
    for record in case.timeline.backwards(until_ns, node="coordinator", kinds=kinds):
        body = record.event.body
        assert isinstance(body, AssignmentChanged)
        fits = dataset in ("", body.dataset) and task in ("", body.task)
        if fits and any(move.first <= shard <= move.last and move.source for move in body.moves):
            found = record
            break
    if found is None:
        return Answer("no", f"no: part {shard} was handed out once and never moved")
    body = found.event.body
    assert isinstance(body, AssignmentChanged)
    return _judged(case, found, body, shard)


def _judged(case: Case, found: Record, body: AssignmentChanged, shard: int) -> Answer:
    past = state_at(case.timeline, found.event.seq)
    chain = case.ancestry(found)
    move = next(each for each in body.moves if each.first <= shard <= each.last)
    told = f"it went from {move.source or 'nobody'} to {move.target}: {body.reason}"
    if past.doubt:
        return Answer("unknown", f"unknown whether it was minimal; {told}", chain)
    task = past.state.tasks[body.task]
    feed = task.feeds[body.dataset]
    members = {worker: past.state.workers[worker].weight for worker in task.members}
    least = sum(each.last - each.first + 1 for each in assign(feed.holdings, members, feed.count))
    forced = sum(len(items) for owner, items in feed.holdings.items() if owner not in members)
    minimal = body.moved <= max(least, forced)
    judged = "the least" if minimal else f"not the least: {least} would have done"
    text = f"{told}; {counted(body.moved, 'part')} moved, {judged}"
    cost = Cost(0.0, len({each.target for each in body.moves}), f"{body.moved} parts to fetch")
    verdict: Verdict = "yes" if minimal else "no"
    return Answer(verdict, f"{verdict}: {text}", chain, cost, [link(found).text])
