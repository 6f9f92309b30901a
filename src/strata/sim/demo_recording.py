"""Records the run that the page plays as its demo: `make demo`.

It is the simulated cluster of `strata demo`, for some minutes, as a coordinator's data folder. It
is archived like any other run and shipped with the package, so that the page can show it beside a
real cluster or before there is one.
"""

import sys
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec

from strata.coordinator.logs.log_store import LogStore
from strata.core.record.event_codec import CODEC
from strata.sim.demo_cluster import Demo, scenario
from strata.sim.virtual_time import EPOCH_NS, SECOND_NS
from strata.store.sqlite import SqliteStore

SEED, WORKERS, MINUTES, STEP_S, STEPS = 7, 8, 10, 2.0, 180
"""Longer steps than in `strata demo` make fewer events: the recording is part of the package."""


def record(folder: Path) -> None:
    """Write the log of the run into a new folder."""
    folder.mkdir(parents=True)
    until_ns = EPOCH_NS + MINUTES * 60 * SECOND_NS
    slower = msgspec.structs.replace(scenario(SEED, WORKERS), step_s=STEP_S, steps=STEPS)
    with (
        tempfile.TemporaryDirectory(prefix="strata-recording-") as lines,
        SqliteStore(folder / "log.db", CODEC) as store,
        closing(LogStore(Path(lines))) as logs,
    ):
        Demo(slower, store, logs, EPOCH_NS, until_ns)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
