"""The shards of a dataset in an epoch: state and assigned worker.

Shards that workers own are `leased` to their owner. With leases a shard is `todo` until a worker
leases it, `leased` while that worker trains it and `consumed` afterwards. A dataset that is trained
step by step has the shards of `core/datasets/epoch_shards`; a shard is `consumed` when the steps of
all its samples are committed, and is still shown with its assigned worker. All shards of a dataset
that no task trains on are `todo`; workers of a task that has ended own nothing. Only the shards of
the requested page are computed, because there may be millions.
"""

from collections import Counter
from collections.abc import Iterator

from strata.coordinator.rest.response_models import ShardResponse, ShardState
from strata.core.datasets.dataset_rules import order_of
from strata.core.datasets.epoch_shards import (
    EpochShards,
    Layout,
    epoch_of_feed,
    trained_dataset_steps,
)
from strata.core.order import Integers
from strata.core.state import Cluster, Dataset
from strata.core.task_state import Feed, Task
from strata.errors import InvalidArgument, NotFound


def feeding_task(state: Cluster, dataset: Dataset, task_id: str) -> Task | None:
    """The requested task, or the newest task that trains on the dataset."""
    if task_id:
        task = state.task(task_id)
        if dataset.id not in task.feeds:
            raise NotFound(
                f"task {task_id!r} does not train on dataset {dataset.id!r}",
                hint="leave task_id out to see the newest task that does",
            )
        return task
    users = [task for task in state.tasks.values() if dataset.id in task.feeds]
    running = [task for task in users if not task.ended]
    newest_last = running or users
    return newest_last[-1] if newest_last else None


def first_shard(cursor: str) -> int:
    """The shard number in a cursor."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidArgument(
            f"cursor {cursor[:40]!r} is not a shard number",
            hint="pass the X-Next-Cursor header of the previous page",
        )
    return int(cursor)


class ShardList:
    """The shards of a dataset in an epoch; by default the present epoch of the task."""

    def __init__(self, dataset: Dataset, task: Task | None, epoch: int | None = None) -> None:
        self._dataset, self._task = dataset, task
        self._feed = task.feeds[dataset.id] if task is not None else None
        self._present = epoch_of_feed(task, dataset.spec, self._feed) if task and self._feed else 0
        self.epoch = self._present if epoch is None else epoch

    @property
    def total(self) -> int:
        """Number of shards."""
        if self._feed is not None and self._feed.unit == "lane":
            return _by_step(self._dataset, self._feed).count(self.epoch)
        return self._dataset.spec.shard_count

    def page(self, first: int, limit: int) -> list[ShardResponse]:
        """Up to `limit` shards from number `first` on."""
        if self._feed is not None and self._feed.unit == "lane":
            return list(self._by_step(self._feed, first, limit))
        return list(self._by_range(first, limit))

    def _by_step(self, feed: Feed, first: int, limit: int) -> Iterator[ShardResponse]:
        assert self._task is not None
        shards = _by_step(self._dataset, feed)
        steps = trained_dataset_steps(self._task, feed.dataset)
        found = shards.page(self.epoch, first, limit, steps)
        lanes = {shard.lane for shard in found}
        owners = {} if self._task.ended else _holders(feed, lanes)
        for shard in found:
            owner = owners.get(shard.lane)
            state: ShardState = "consumed" if shard.consumed else "leased" if owner else "todo"
            span = (shard.start, shard.end)
            yield self._shown(shard.id, span, state, owner, shards.layout)

    def _by_range(self, first: int, limit: int) -> Iterator[ShardResponse]:
        feed, spec = self._feed, self._dataset.spec
        wanted = range(first, min(first + limit, spec.shard_count))
        owners = {} if feed is None or (self._task and self._task.ended) else self._owners(wanted)
        returned = set(feed.returned) if feed is not None else set()
        for shard in wanted:
            state: ShardState = "leased" if shard in owners else "todo"
            if shard not in owners and feed is not None and feed.unit == "lease":
                state = self._lease_state(feed, shard, returned)
            yield self._shown(shard, spec.shard_range(shard), state, owners.get(shard), "dataset")

    def _owners(self, wanted: range) -> dict[int, str]:
        feed = self._feed
        assert feed is not None
        if feed.unit != "lease":
            return _holders(feed, wanted)
        present = (lease for lease in feed.leases.values() if lease.epoch == self.epoch)
        return {lease.shard: lease.worker for lease in present if lease.shard in wanted}

    def _lease_state(self, feed: Feed, shard: int, returned: set[int]) -> ShardState:
        if self.epoch != feed.epoch:
            return "consumed" if self.epoch < feed.epoch else "todo"
        return "consumed" if shard < feed.next_shard and shard not in returned else "todo"

    def _shown(
        self,
        shard: int,
        span: tuple[int | None, int | None],
        state: ShardState,
        worker: str | None,
        layout: Layout,
    ) -> ShardResponse:
        leased = self._feed is not None and self._feed.unit == "lease"
        return ShardResponse(
            shard_id=shard,
            unit="lease" if leased else "shard",
            start_index=span[0],
            end_index=span[1],
            state=state,
            worker_id=worker,
            task_id=self._task.id if self._task else None,
            epoch=self.epoch,
            layout=layout,
        )


class AssignedShards:
    """Numbers of shards assigned to the workers of a task in the present epochs."""

    def __init__(self, state: Cluster, task: Task) -> None:
        feeds = [] if task.ended else [*task.feeds.values()]
        self._owned = [feed.holdings for feed in feeds if feed.unit == "shard"]
        self._leases = Counter(lease.worker for feed in feeds for lease in feed.leases.values())
        self._lanes = [
            (feed.holdings, _shards_by_lane(task, state.datasets[feed.dataset], feed))
            for feed in feeds
            if feed.unit == "lane"
        ]

    def of(self, worker: str) -> int:
        """Number of shards assigned to a worker."""
        owned = sum(len(holdings.get(worker, ())) for holdings in self._owned)
        by_lanes = sum(int(lanes[held.get(worker, [])].sum()) for held, lanes in self._lanes)
        return owned + by_lanes + self._leases[worker]


def _shards_by_lane(task: Task, dataset: Dataset, feed: Feed) -> Integers:
    epoch = epoch_of_feed(task, dataset.spec, feed)
    return _by_step(dataset, feed).counts_by_lane(epoch)


def _by_step(dataset: Dataset, feed: Feed) -> EpochShards:
    return EpochShards(dataset.spec, feed, order_of(dataset.spec, feed))


def _holders(feed: Feed, wanted: range | set[int]) -> dict[int, str]:
    return {
        item: worker for worker, items in feed.holdings.items() for item in items if item in wanted
    }
