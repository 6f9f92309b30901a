"""The shards of an epoch that is trained step by step: ranges of samples with one owner each.

Workers own lanes (`order`), and a lane is a share of every batch, so in a shuffled epoch no range
of the dataset belongs to one worker. A range of the epoch's *line* does: the samples of the epoch,
lane after lane, those of a lane in training order. A shard is a range of that line. It has at most
`shard_size` samples and lies within one lane, so each sample of an epoch is in one shard and each
shard has one owner, whatever the mode of the order.

In the modes `window` and `sequential` the line consists of the dataset's own shards: there a range
of the line is a range of the dataset, and is shown as such. In other modes it counts places of the
epoch.

How much of a shard is trained follows from the committed steps. A lane is trained from its first
sample to its last; inside a window the samples are permuted, so the shards of a window are consumed
together. A dataset of unknown length has no ranges: there a shard is a lane.
"""

from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from strata.core.datasets.training_loops import loop_is_open, trained_steps
from strata.core.order import Integers, Order, lane_parts
from strata.core.state import DatasetSpec
from strata.core.task_state import Feed, Task

Layout: TypeAlias = Literal["dataset", "epoch"]

MIXTURE = "mixture"
"""The format of several datasets that are trained as one."""

_CACHED = 4


class EpochShard(Struct, frozen=True):
    """Samples `start` up to `end`, exclusive, of a lane; `consumed` if all of them are trained."""

    id: int
    start: int | None
    end: int | None
    lane: int
    consumed: bool


class Places(Struct, frozen=True):
    """Where samples of an epoch are: their lanes, their shards, and their places in those."""

    epochs: list[int]
    lanes: list[int]
    shards: list[int]
    places: list[int | None]


class _Cuts(Struct, frozen=True):
    """Where the line is cut: the first place of each shard and lane, the first shard of each lane
    (and one past the last), and how many each lane has."""

    shards: Integers
    lanes: Integers
    first_shards: Integers
    counts: Integers


class EpochShards:
    """The shards of one dataset of a task, by its order."""

    def __init__(self, spec: "DatasetSpec", feed: "Feed", order: Order) -> None:
        self._spec, self._order = spec, order
        self._ranges = spec.has_length
        lined = spec.shuffle and feed.mode != "global" and spec.format != MIXTURE
        self.layout: Layout = "dataset" if lined else "epoch"

    def count(self, epoch: int) -> int:
        """How many shards an epoch has."""
        return self._order.lanes if not self._ranges else self._cuts(epoch).shards.size

    def counts_by_lane(self, epoch: int) -> Integers:
        """How many shards each lane has in an epoch."""
        if not self._ranges:
            return np.ones(self._order.lanes, np.int64)
        return self._cuts(epoch).counts

    def page(self, epoch: int, first: int, limit: int, steps: int) -> list[EpochShard]:
        """Up to `limit` shards from `first` on, after `steps` committed steps of the dataset."""
        stop = min(first + limit, self.count(epoch))
        if not self._ranges:
            return [
                EpochShard(id=lane, start=None, end=None, lane=lane, consumed=False)
                for lane in range(first, stop)
            ]
        shards: list[EpochShard] = []
        lane = int(np.searchsorted(self._cuts(epoch).first_shards, first, "right")) - 1
        while first + len(shards) < stop:
            shards += self._of_lane(epoch, lane, first, stop, steps)
            lane += 1
        return shards

    def of_lane(self, epoch: int, lane: int) -> list[EpochShard]:
        """The shards of a lane in an epoch, in the order of the line, before any step."""
        if not self._ranges:
            return [EpochShard(id=lane, start=None, end=None, lane=lane, consumed=False)]
        return self._of_lane(epoch, lane, 0, self.count(epoch), 0)

    def find(self, positions: Integers) -> Places:
        """Where the samples at some positions of the order are."""
        epochs = positions // self._order.total_samples
        lanes = positions % self._order.lanes
        if not self._ranges:
            own = [int(lane) for lane in lanes]
            return Places(
                epochs=[int(e) for e in epochs], lanes=own, shards=own, places=[None] * len(own)
            )
        shards: list[int] = []
        places: list[int | None] = []
        for position, epoch, lane in zip(positions, epochs, lanes, strict=True):
            cuts = self._cuts(int(epoch))
            at = self._place(int(position), int(epoch), int(cuts.lanes[lane]))
            shards.append(int(np.searchsorted(cuts.shards, at, "right")) - 1)
            places.append(self._as_shown(at))
        return Places(
            epochs=[int(e) for e in epochs],
            lanes=[int(each) for each in lanes],
            shards=shards,
            places=places,
        )

    def _of_lane(
        self, epoch: int, lane: int, first: int, stop: int, steps: int
    ) -> list[EpochShard]:
        cuts = self._cuts(epoch)
        own_first, own_stop = cuts.first_shards[lane], cuts.first_shards[lane + 1]
        wanted = range(max(first, int(own_first)), min(stop, int(own_stop)))
        if not wanted:
            return []
        settled = int(cuts.lanes[lane]) + self._order.settled(lane, epoch, steps)
        shards = []
        for number in wanted:
            start = int(cuts.shards[number])
            last = number + 1 == cuts.shards.size
            end = self._order.total_samples if last else int(cuts.shards[number + 1])
            shown = self._as_shown(start)
            shards.append(
                EpochShard(
                    id=number,
                    start=shown,
                    end=shown + end - start,
                    lane=lane,
                    consumed=end <= settled,
                )
            )
        return shards

    def _place(self, position: int, epoch: int, lane_start: int) -> int:
        """The place on the line of the sample at a position."""
        if self.layout == "dataset":
            return int(self._order.line_places(np.array([position], np.int64))[0])
        within = position - epoch * self._order.total_samples
        return lane_start + within // self._order.lanes

    def _as_shown(self, place: int) -> int:
        """A place of the line as it is shown; no shard crosses one of the dataset's own shards."""
        if self.layout == "epoch":
            return place
        return int(self._order.on_line(np.array([place], np.int64))[0])

    def _cuts(self, epoch: int) -> _Cuts:
        spec = self._spec
        turn = epoch * spec.total_samples % self._order.lanes
        return _cuts(spec.total_samples, spec.shard_size, self._order.lanes, turn)


def trained_dataset_steps(task: Task, dataset: str) -> int:
    """How many steps of a dataset a task has trained."""
    return trained_steps(task.loops, dataset, task.committed)


def epoch_of_feed(task: Task, spec: "DatasetSpec", feed: "Feed") -> int:
    """The epoch that a task trains on; after a loop has ended, that of its last step."""
    if feed.unit != "lane":
        return feed.epoch
    steps = trained_dataset_steps(task, feed.dataset)
    if steps and not loop_is_open(task.loops, feed.dataset, task.committed):
        steps -= 1
    return steps * feed.global_batch // spec.total_samples


@lru_cache(_CACHED)
def _cuts(total: int, shard_size: int, lanes: int, turn: int) -> _Cuts:
    starts, lengths = lane_parts(
        np.array([turn], np.int64), np.arange(lanes, dtype=np.int64), total, lanes
    )
    shards = np.union1d(np.arange(0, total, shard_size, dtype=np.int64), starts[lengths > 0])
    first_shards = np.searchsorted(shards, np.append(starts, total))
    return _Cuts(
        shards=shards, lanes=starts, first_shards=first_shards, counts=np.diff(first_shards)
    )
