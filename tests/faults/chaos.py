"""Plants faults drawn by a seed into one cluster, one after the other, for a given time.

    python -m tests.faults.chaos --minutes 10 --seed 7        (make chaos MINUTES=10 SEED=7)

Draws from the faults of the matrix that any cluster can have (without a `prepare` of their own).
After each one the same is checked as in the matrix, on the same cluster, so what one fault leaves
behind meets the next one. Prints the seed first: the same seed draws the same faults. Exits with 1
at the first broken promise, and keeps the cluster's folder.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.fault_cluster import plain, running
from tests.faults.fault_matrix import Fault, load, play
from tests.faults.fault_needs import missing


def drawable(quick: bool) -> list[Fault]:
    """The faults to draw from."""
    return [
        each
        for each in load().values()
        if each.prepare is plain and not missing(each) and (each.quick or not quick)
    ]


def rampage(folder: Path, seed: int, seconds: float, quick: bool = False, most: int = 10**6) -> int:
    """Plant faults until the time is over, or so many; returns their number."""
    chance, faults, ends_s = random.Random(seed), drawable(quick), time.monotonic() + seconds
    count = 0
    with running(folder) as cluster:
        while count < most and time.monotonic() < ends_s:
            fault = chance.choice(faults)
            print(f"{count + 1}: {fault.name}", flush=True)
            row = play(cluster, fault)
            shown = {name: row[name] for name in ("detected_s", "recovered_s", "steps")}
            print(f"   nothing lost; {shown}", flush=True)
            count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="Minutes to plant faults for")
    parser.add_argument("--seed", type=int, default=None, help="Seed that draws the faults")
    given = parser.parse_args()
    seed = random.randrange(2**31) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="strata-chaos-"))
    try:
        count = rampage(folder, seed, given.minutes * 60)
    except AssertionError as broken:
        print(f"broken promise: {broken}\nseed {seed}, cluster in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    print(f"{count} faults, nothing lost, every cause named; seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
