"""Who sits at which rank: the workers of a host side by side, and nobody moves without need.

Collectives inside a host are many times as fast as between hosts, and what spreads a model over
the ranks (tensor parallelism, hybrid sharding) takes neighbours for such. So each host has a block
of ranks, in the order in which the hosts sit already; inside its block everyone stays, and those
who sit elsewhere or nowhere take what is free. New hosts come last, by name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

Seat = tuple[int, str]


def seats(
    members: Sequence[str],
    left: Iterable[str],
    joined: Iterable[str],
    host_of: Callable[[str], str],
) -> tuple[list[Seat], int]:
    """The ranks that get a new holder, and how many ranks there are then."""
    gone = set(left)
    ranks = {worker: rank for rank, worker in enumerate(members) if worker not in gone}
    hosts = defaultdict[str, list[str]](list)
    for worker in [*ranks, *sorted(joined, key=_by_number)]:
        hosts[host_of(worker)].append(worker)

    def place(host: str) -> tuple[float, tuple[int, str]]:
        """The middle of where a host's workers sit, and its name."""
        sitting = [ranks[worker] for worker in hosts[host] if worker in ranks]
        return (sum(sitting) / len(sitting) if sitting else float("inf"), _by_number(host))

    changed: list[Seat] = []
    begin = 0
    for host in sorted(hosts, key=place):
        block = range(begin, begin + len(hosts[host]))
        begin = block.stop
        settled = {ranks[worker] for worker in hosts[host] if ranks.get(worker, -1) in block}
        free = [rank for rank in block if rank not in settled]
        movers = [worker for worker in hosts[host] if ranks.get(worker, -1) not in block]
        changed += zip(free, movers, strict=True)
    return changed, begin


def _by_number(name: str) -> tuple[int, str]:
    """Puts the tenth after the ninth, where names differ by their number alone."""
    return len(name), name
