"""Which shard of a dataset is whose in the present epoch, as the tasks' feeds tell it.

Shards that workers own are `leased` to their owner. Leases go out one at a time: a shard is `todo`
until it is handed out, `leased` while somebody trains it and `consumed` afterwards. A dataset that
nobody trains on is all `todo`; workers of a task that has ended own nothing. Only the shards of the
page are looked at, since there may be millions.
"""

from strata.coordinator.http.models import ShardResponse, ShardState
from strata.core.datasets import Dataset, Feed
from strata.core.state import Cluster
from strata.core.tasks import Task
from strata.errors import InvalidArgument, NotFound


def feeding_task(state: Cluster, dataset: Dataset, task_id: str) -> Task | None:
    """The task whose feed is shown: the one asked for, else the newest that trains on it."""
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
    """The shard that a cursor points at."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidArgument(
            f"cursor {cursor[:40]!r} is not the number of a shard",
            hint="pass the X-Next-Cursor header of the page before",
        )
    return int(cursor)


def shards(dataset: Dataset, task: Task | None, first: int, limit: int) -> list[ShardResponse]:
    """Up to `limit` shards, or lanes, from the first wanted."""
    if task is None:
        wanted = range(first, min(first + limit, dataset.spec.shard_count))
        return [_shown(dataset, None, None, shard, "todo", None) for shard in wanted]
    feed = task.feeds[dataset.id]
    wanted = range(first, min(first + limit, feed.count))
    owners = {} if task.ended else _owners(feed, wanted)
    returned = set(feed.returned)
    return [
        _shown(dataset, task, feed, shard, _state(feed, shard, owners, returned), owners.get(shard))
        for shard in wanted
    ]


def shard_total(dataset: Dataset, task: Task | None) -> int:
    """How many shards, or lanes, there are."""
    return task.feeds[dataset.id].count if task else dataset.spec.shard_count


def _owners(feed: Feed, wanted: range) -> dict[int, str]:
    if feed.unit == "lease":
        present = (lease for lease in feed.leases.values() if lease.epoch == feed.epoch)
        return {lease.shard: lease.worker for lease in present if lease.shard in wanted}
    return {
        item: worker for worker, items in feed.holdings.items() for item in items if item in wanted
    }


def _state(feed: Feed, shard: int, owners: dict[int, str], returned: set[int]) -> ShardState:
    if shard in owners:
        return "leased"
    consumed = feed.unit == "lease" and shard < feed.next_shard and shard not in returned
    return "consumed" if consumed else "todo"


def _shown(
    dataset: Dataset,
    task: Task | None,
    feed: Feed | None,
    shard: int,
    state: ShardState,
    worker: str | None,
) -> ShardResponse:
    lane = feed is not None and feed.unit == "lane"
    start, end = (None, None) if lane else dataset.spec.shard_range(shard)
    return ShardResponse(
        shard_id=shard,
        unit=feed.unit if feed else "shard",
        start_index=start,
        end_index=end,
        state=state,
        worker_id=worker,
        task_id=task.id if task else None,
        epoch=feed.epoch if feed else 0,
    )
