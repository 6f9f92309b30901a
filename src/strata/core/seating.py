"""Which worker has which rank: the workers of a host side by side, and nobody moves without need.

Collectives inside a host are many times as fast as between hosts, and what spreads a model over
the ranks (tensor parallelism, hybrid sharding) takes neighbours for such. So each host has a block
of ranks, in the order in which the hosts sit already; inside its block everyone stays, and those
who sit elsewhere or nowhere take what is free. A host that is gone leaves its block to a new host
of the same size, else to the last one that has it, so that nearly all others keep their ranks. New
hosts come last, by name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

Seat = tuple[int, str]
Place = tuple[float, tuple[int, str]]


class _Hosts:
    """Workers by host: those who have a rank with it, in its order, and those who join."""

    def __init__(self) -> None:
        self.workers = defaultdict[str, list[str]](list)
        self.ranks = defaultdict[str, list[int]](list)
        self.joined = defaultdict[str, list[str]](list)

    def size(self, host: str) -> int:
        """How many workers it has."""
        return len(self.workers.get(host, ())) + len(self.joined.get(host, ()))

    def movers(self, host: str, block: range) -> Iterable[Seat]:
        """Who gets which rank so that the host's workers are in its block."""
        ranks, joined = self.ranks.get(host, []), self.joined.get(host, [])
        if not joined and ranks[0] == block.start and ranks[-1] == block.stop - 1:
            return ()  # as many ranks as the block has, in ascending order: all are inside
        pairs = list(zip(ranks, self.workers.get(host, []), strict=True))
        settled = {rank for rank in ranks if rank in block}
        free = [rank for rank in block if rank not in settled]
        outside = [worker for rank, worker in pairs if rank not in settled]
        return zip(free, outside + joined, strict=True)


def seats(
    members: Sequence[str],
    left: Iterable[str],
    joined: Iterable[str],
    host_of: Callable[[str], str],
) -> tuple[list[Seat], int]:
    """The ranks that get a new holder, and how many ranks there are then."""
    staying, leaving, gone = _Hosts(), defaultdict[str, list[int]](list), set(left)
    for rank, worker in enumerate(members):
        host = host_of(worker)
        if worker in gone:
            leaving[host].append(rank)
        else:
            staying.workers[host].append(worker)
            staying.ranks[host].append(rank)
    for worker in sorted(joined, key=_by_number):
        staying.joined[host_of(worker)].append(worker)
    changed: list[Seat] = []
    begin = 0
    for host in _order(staying, leaving):
        block = range(begin, begin + staying.size(host))
        begin = block.stop
        changed += staying.movers(host, block)
    return changed, begin


def _order(staying: _Hosts, leaving: dict[str, list[int]]) -> list[str]:
    """The hosts in the order of their blocks."""
    places: dict[str, Place] = {
        host: (sum(ranks) / len(ranks), _by_number(host)) for host, ranks in staying.ranks.items()
    }
    last_first = sorted(places, key=lambda host: places[host], reverse=True)
    new = sorted(staying.joined.keys() - places.keys(), key=_by_number)
    empty = sorted(
        (sum(ranks) / len(ranks), len(ranks))
        for host, ranks in leaving.items()
        if host not in places and host not in staying.joined
    )
    for middle, size in empty:
        for hosts in (new, last_first):
            host = next((host for host in hosts if staying.size(host) == size), None)
            if host is not None and (host not in places or places[host][0] > middle):
                hosts.remove(host)
                places[host] = (middle, _by_number(host))
                break
    for host in new:
        places[host] = (float("inf"), _by_number(host))
    return sorted(places, key=lambda host: places[host])


def _by_number(name: str) -> tuple[int, str]:
    """Puts the tenth after the ninth, where names differ by their number alone."""
    return len(name), name
