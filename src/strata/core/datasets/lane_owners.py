"""Assignment of n items (lanes or shards) to workers: sticky, fair and deterministic.

Every item has exactly one owner; each worker holds its fair share, rounded down or up; no item
moves without need. A plain hash ring is 1.45 times uneven, and one bounded to 1.05 moves 1.6 times
too much, so the ring only breaks ties here: it chooses the worker of an orphaned item among those
that have room.

Each worker's quota is its fair share by weight; the few that may hold one more are those that
already do. Items above a quota, and items without an owner, go to workers below their quota. That
is the minimum: an item moves only because its owner is gone or over quota.

The cost is proportional to the number of workers and of moves, not of items.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from heapq import nsmallest
from typing import TypeAlias

from msgspec import Struct

Holdings: TypeAlias = dict[str, list[int]]

REMEMBERED_POINTS = 65_536

_MASK = (1 << 64) - 1


class Move(Struct, frozen=True, gc=False, array_like=True):
    """Items `first` to `last`, inclusive, move from one worker to another; `source` may be
    empty."""

    first: int
    last: int
    source: str
    target: str


def assign(holdings: Holdings, members: Mapping[str, int], count: int) -> list[Move]:
    """The moves after which `members` (worker to weight) hold items 0 to count-1 fairly.

    `holdings` is what each worker holds now; owners that are not members lose everything. Items
    without an owner are assigned too.
    """
    if not members:
        return [
            move
            for source in sorted(holdings)
            for move in _runs((item, source, "") for item in holdings[source])
        ]
    held = {worker: len(holdings.get(worker, ())) for worker in members}
    quota = _quotas(held, members, count)
    loose = [
        (item, source)
        for source, items in holdings.items()
        if source not in members
        for item in items
    ]
    if sum(map(len, holdings.values())) < count:
        loose += [(item, "") for item in _never_held(holdings, count)]
    for worker, items in holdings.items():
        if worker in members and held[worker] > quota[worker]:
            loose += [(item, worker) for item in items[quota[worker] :]]
    room = {
        worker: quota[worker] - held[worker] for worker in members if held[worker] < quota[worker]
    }
    return _runs(_hand_out(sorted(loose), room))


def apply_moves(holdings: Holdings, moves: Iterable[Move]) -> None:
    """Apply the moves in place; each worker's list stays in the order of arrival."""
    leaving: dict[str, set[int]] = {}
    for move in moves:
        items = range(move.first, move.last + 1)
        if move.source:
            leaving.setdefault(move.source, set()).update(items)
        if move.target:
            holdings.setdefault(move.target, []).extend(items)
    for source, gone in leaving.items():
        kept = [item for item in holdings.get(source, ()) if item not in gone]
        if kept:
            holdings[source] = kept
        else:
            holdings.pop(source, None)


def _quotas(held: Mapping[str, int], weights: Mapping[str, int], count: int) -> dict[str, int]:
    total = sum(weights.values())
    quota = {worker: count * weight // total for worker, weight in weights.items()}
    extra = count - sum(quota.values())
    # Those that already hold more than their base keep it: moving the extra would move an item.
    favoured = nsmallest(
        extra,
        quota,
        key=lambda w: (held[w] <= quota[w], -(count * weights[w] % total), ring_point(w)),
    )
    for worker in favoured:
        quota[worker] += 1
    return quota


def _never_held(holdings: Holdings, count: int) -> list[int]:
    seen = bytearray(count)
    for items in holdings.values():
        for item in items:
            seen[item] = 1
    return [item for item in range(count) if not seen[item]]


def _hand_out(loose: list[tuple[int, str]], room: dict[str, int]) -> Iterable[tuple[int, str, str]]:
    """Give each item without an owner to the next worker on the ring that has room.

    A large assignment (the first one above all) is dealt in contiguous runs instead, so that its
    record stays small and neighbouring shards share a reader.
    """
    ring = sorted((ring_point(worker), worker) for worker in room)
    if len(loose) > 4 * len(ring):
        targets = (worker for _, worker in ring for _ in range(room[worker]))
        yield from (
            (item, source, target) for (item, source), target in zip(loose, targets, strict=True)
        )
        return
    points = [point for point, _ in ring]
    names = [worker for _, worker in ring]
    for item, source in loose:
        at = bisect_left(points, _mix(item)) % len(names)
        worker = names[at]
        yield item, source, worker
        room[worker] -= 1
        if not room[worker]:
            del points[at], names[at]


def _runs(single: Iterable[tuple[int, str, str]]) -> list[Move]:
    moves: list[Move] = []
    first = last = 0
    ends: tuple[str, str] | None = None
    for item, source, target in single:
        if ends == (source, target) and item == last + 1:
            last = item
            continue
        if ends is not None:
            moves.append(Move(first=first, last=last, source=ends[0], target=ends[1]))
        first = last = item
        ends = (source, target)
    if ends is not None:
        moves.append(Move(first=first, last=last, source=ends[0], target=ends[1]))
    return moves


def epoch_order(items: Iterable[int], seed: int, epoch: int) -> list[int]:
    """A worker's items in the order of an epoch: different in each epoch, the same on every
    host."""
    salt = _mix(seed & _MASK) ^ _mix(epoch + 1)
    return sorted(items, key=lambda item: _mix(item ^ salt))


@lru_cache(REMEMBERED_POINTS)
def ring_point(name: str) -> int:
    """A worker's place on the hash ring, the same on every machine.

    Every change of membership needs the places of all members: for 10,000 of them hashing takes 9
    ms, a lookup 1 ms.
    """
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _mix(item: int) -> int:
    """SplitMix64's finalizer: spreads consecutive items over the ring."""
    z = (item + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
