"""Time to reassign 100,000 shards among 1,000 workers when one is lost and when one joins.

Prints JSON: milliseconds, median and best of several, and how many shards moved against the
minimum. Exits with 1 above the bound of 10 ms.
"""

import sys

from common import median, show, timed

from strata.core.datasets.lane_owners import Holdings, apply_moves, assign

WORKERS = 1_000
SHARDS = 100_000
ROUNDS = 20
BOUND_MS = 10.0


def measure(holdings: Holdings, members: dict[str, int]) -> dict[str, float]:
    took_s = [timed(lambda: assign(holdings, members, SHARDS)) for _ in range(ROUNDS)]
    moves = assign(holdings, members, SHARDS)
    moved = sum(move.last - move.first + 1 for move in moves)
    return {
        "median_ms": median(took_s, 1e3),
        "best_ms": round(min(took_s) * 1e3, 3),
        "moved": moved,
    }


def main() -> int:
    members = {f"worker-{index}": 1 for index in range(WORKERS)}
    holdings: Holdings = {}
    apply_moves(holdings, assign(holdings, members, SHARDS))
    lost = {worker: 1 for worker in members if worker != "worker-500"}
    results = {
        "one_loss": {**measure(holdings, lost), "minimum": len(holdings["worker-500"])},
        "one_join": {
            **measure(holdings, {**members, "newcomer": 1}),
            "minimum": SHARDS // (WORKERS + 1),
        },
    }
    size = {"workers": WORKERS, "shards": SHARDS, "rounds": ROUNDS, "bound_ms": BOUND_MS}
    show("assign", size | results)
    return int(any(result["best_ms"] > BOUND_MS for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
