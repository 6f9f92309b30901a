"""Why did a task change its state or generation; why did a shard move, and was that minimal?"""

from strata.core.datasets.dataset_rules import AssignmentChanged, order_of
from strata.core.datasets.epoch_shards import EpochShards, epoch_of_feed
from strata.core.datasets.lane_owners import Move, assign
from strata.errors import NotFound
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import Record
from strata.timeline.read.sentences import counted, lasting, sentence
from strata.timeline.why.investigation import Answer, LogSearch, link, lost_s

KINDS = frozenset({"TaskStateChanged", "GenerationChanged"})


def changed(
    search: LogSearch,
    task: str,
    state: str = "",
    generation: int | None = None,
    time_ms: float | None = None,
) -> Answer:
    """The chain of causes behind a change of a task's state or generation."""
    until_ns = search.until(time_ms)
    kinds = {"GenerationChanged"} if generation is not None else KINDS
    if state:
        kinds = {"TaskStateChanged"}
    found = search.last(kinds, until_ns, task=task, after=state, generation=generation)
    record = search.require(found, f"matching change of task {task}")
    chain = search.ancestry(record)
    root = chain[0]
    because = "" if root.record is record else f"; first cause: {root.text}"
    text = f"yes: {sentence(record)}{because}"
    if len(chain) == 1 and not record.text("reason"):
        return Answer(
            verdict="unknown",
            text=f"unknown: {sentence(record)}, and no cause is recorded",
            chain=chain,
        )
    return Answer(verdict="yes", text=text, chain=chain, cost=_until_running(search, record))


def _until_running(search: LogSearch, record: Record) -> Cost:
    """The time until the task trained again."""
    again = search.first({"RecoveryChosen"}, record.at_ns, task=record.text("task"))
    if again is None or record.text("after") in ("running", "completed"):
        return Cost()
    size = record.get("world_size")
    workers = size if isinstance(size, int) else 1
    idle_s = lost_s(record.at_ns, again.at_ns)
    return Cost(idle_s * workers, workers, f"{lasting(idle_s)} until training continued")


def moved(
    search: LogSearch, shard: int, dataset: str = "", task: str = "", time_ms: float | None = None
) -> Answer:
    """Was the move necessary, and the least that keeps the shares fair?"""
    until_ns = search.until(time_ms)
    kinds = {AssignmentChanged.__name__}
    named = f"assignment of the shards of {dataset or 'a dataset'}"
    newest = search.require(search.last(kinds, until_ns, task=task, dataset=dataset), named)
    task, dataset = newest.text("task"), newest.text("dataset")
    owned = _Owned(search, task, dataset, shard)
    if owned.at(search.timeline.position_at(until_ns)) is None:
        raise NotFound(
            f"{dataset} has no shard {shard}", hint="the API lists the shards of a dataset"
        )
    for record in search.timeline.backwards(until_ns, node="coordinator", kinds=kinds):
        body = record.event.body
        assert isinstance(body, AssignmentChanged)
        if (body.task, body.dataset) != (task, dataset) or not any(m.source for m in body.moves):
            continue
        item = owned.at(record.event.seq)
        if item is not None and _move_of(body, item) is not None:
            return _judged(search, record, body, item, owned.named)
    shard_name = f"shard {shard} of {dataset}"
    if owned.doubt:
        return Answer(
            verdict="unknown",
            text=f"unknown: no move of {shard_name} is recorded, but {owned.doubt}",
        )
    return Answer(verdict="no", text=f"no: {shard_name} was assigned once and never moved")


class _Owned:
    """What workers own of a shard as users see it: itself, or the lane that it lies in.

    A lane's shards have other numbers in each epoch, so the lane is looked up at a position.
    """

    def __init__(self, search: LogSearch, task: str, dataset: str, shard: int) -> None:
        self._case, self._task, self._dataset, self._shard = search, task, dataset, shard
        self.named = ""
        self.doubt = ""

    def at(self, position: int) -> int | None:
        """The lane or shard, by the facts before a position; None if there is no such shard."""
        past = state_at(self._case.timeline, position)
        self.doubt = self.doubt or past.doubt
        task, spec = past.state.tasks[self._task], past.state.datasets[self._dataset].spec
        feed = task.feeds[self._dataset]
        self.named = f"shard {self._shard} of {self._dataset}"
        if feed.unit != "lane":
            return self._shard if 0 <= self._shard < feed.count else None
        epoch = epoch_of_feed(task, spec, feed)
        shards = EpochShards(spec, feed, order_of(spec, feed))
        self.named += f" in epoch {epoch}"
        if not 0 <= self._shard < shards.count(epoch):
            return None
        return shards.page(epoch, self._shard, 1, 0)[0].lane


def _move_of(body: AssignmentChanged, item: int) -> Move | None:
    """The move of something from one worker to another, if an assignment has it."""
    moves = (each for each in body.moves if each.first <= item <= each.last and each.source)
    return next(moves, None)


def _judged(
    search: LogSearch, found: Record, body: AssignmentChanged, item: int, named: str
) -> Answer:
    past = state_at(search.timeline, found.event.seq)
    chain = search.ancestry(found)
    move = _move_of(body, item)
    assert move is not None, "the caller has found the move"
    moved = f"{named} moved from {move.source} to {move.target}: {body.reason}"
    if past.doubt:
        return Answer(
            verdict="unknown", text=f"unknown whether the move was minimal; {moved}", chain=chain
        )
    task = past.state.tasks[body.task]
    feed = task.feeds[body.dataset]
    members = {worker: past.state.workers[worker].weight for worker in task.members}
    least = sum(each.last - each.first + 1 for each in assign(feed.holdings, members, feed.count))
    forced = sum(len(items) for owner, items in feed.holdings.items() if owner not in members)
    minimal = body.moved <= max(least, forced)
    judged = "the minimum" if minimal else f"more than the minimum of {least}"
    text = f"{moved}; {counted(body.moved, 'part')} moved, {judged}"
    cost = Cost(0.0, len({each.target for each in body.moves}), f"{body.moved} parts to fetch")
    verdict: Verdict = "yes" if minimal else "no"
    return Answer(
        verdict=verdict,
        text=f"{verdict}: {text}",
        chain=chain,
        cost=cost,
        findings=[link(found).text],
    )
