"""Speed of the audit: samples per second that it proves to be applied once per epoch.

The log of a task of eight workers, four million samples in two epochs, with a worker lost and one
come in the middle; each worker recorded each of its steps. Rounds of opening the log and auditing
it; medians.

    python bench_audit.py [--rounds N] [--samples N]

Prints JSON; exits with 1 if it counts less than a million samples a second.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from common import cpu_timed, median, show, timed

sys.path.insert(0, str(Path(__file__).parents[1]))

from strata.core.record.event_codec import CODEC
from strata.store.sqlite import SqliteReader, SqliteStore
from strata.timeline.audit.sample_audit import audit
from tests.timeline.fleet import Fleet

WORKERS, BATCH, EPOCHS, AT_ONCE = 8, 1_024, 2, 100
TARGET_PER_S = 1_000_000


def write_log(path: Path, samples: int) -> str:
    """Write the log of a training run that lost a worker and got another; returns the task."""
    store = SqliteStore(path, CODEC)
    fleet = Fleet(WORKERS, samples=samples // EPOCHS, batch=BATCH, epochs=EPOCHS, store=store)
    steps = samples // BATCH
    while (done := fleet.applied[fleet.row.members[0]]) < steps:
        fleet.train(min(AT_ONCE, steps - done))
        if done < steps // 2 <= done + AT_ONCE:
            fleet.crash("w3")
            fleet.join("late")
            fleet.sync()
    store.close()
    return fleet.task


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4_096_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
        path = Path(folder) / "log.db"
        task = write_log(path, chosen.samples)
        verdicts = []

        def look() -> None:
            reader = SqliteReader(path, CODEC)
            verdicts.append(audit(reader, task).verdict)
            reader.close()

        look()
        wall_s = [timed(look) for _ in range(chosen.rounds)]
        cpu_s = [cpu_timed(look) for _ in range(chosen.rounds)]
    per_s = median((chosen.samples / each for each in wall_s), digits=0)
    figures = {
        "samples": chosen.samples,
        "steps": chosen.samples // BATCH,
        "verdicts": sorted(set(verdicts)),
        "samples_per_s": per_s,
        "samples_per_cpu_s": median((chosen.samples / each for each in cpu_s), digits=0),
    }
    show("audit", figures | {"wanted_per_s": TARGET_PER_S})
    return int(per_s < TARGET_PER_S)


if __name__ == "__main__":
    sys.exit(main())
