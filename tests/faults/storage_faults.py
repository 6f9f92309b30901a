"""Faults of what is stored on: full and read-only disks, an S3 server, and the database."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.agent.harness import until
from tests.faults.fault_checks import Why
from tests.faults.fault_cluster import WAIT_S, Given, Trial
from tests.faults.fault_matrix import fault
from tests.postgres_server import serving
from tests.storage.faulty import faulty_proxy
from tests.storage.server import BUCKET, running

BLOCK = bytes(64 * 1024)


class Disk:
    """A small disk in memory that can be filled, freed and made read-only."""

    def __init__(self, folder: Path, size_mib: int) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={size_mib}m", "strata-test")

    def _mount(self, *how: str) -> None:
        subprocess.run(["mount", *how, str(self.folder)], check=True, capture_output=True)

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (len(BLOCK), 512):
                try:
                    while True:
                        file.write(BLOCK[:size])
                except OSError:
                    continue

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def read_only(self) -> None:
        self._mount("-o", "remount,ro")

    def writable(self) -> None:
        self._mount("-o", "remount,rw")

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True, capture_output=True)


@contextmanager
def disk(folder: Path, size_mib: int = 32) -> Iterator[Disk]:
    made = Disk(folder, size_mib)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def checkpoint_disk(folder: Path) -> Iterator[Given]:
    """The checkpoints on a small disk of their own."""
    with disk(folder / "checkpoints") as made:
        yield Given({"checkpoint_dir": str(made.folder)}, tool=made)


@contextmanager
def log_disk(folder: Path) -> Iterator[Given]:
    """The coordinator's log on a small disk of its own."""
    with disk(folder / "log") as made:
        place = {"data_dir": str(made.folder), "checkpoint_dir": str(folder / "checkpoints")}
        yield Given(place, tool=made)


@fault(
    "log disk full",
    "the disk of the coordinator's log is full for 3 s, then freed",
    declared_by="StoreRefused",
    prepare=log_disk,
    needs=("mount",),
)
def fill_log_disk(trial: Trial) -> Why:
    trial.plant(trial.cluster.tool.fill)
    time.sleep(3)  # the fault itself
    trial.lift(trial.cluster.tool.free)
    trial.waits_for("StoreRefused")
    assert not trial.since("WorkerLost")
    return Why(("outage",), "could store no facts for .*(full|space)")


@contextmanager
def on_postgres(folder: Path) -> Iterator[Given]:
    """The facts in PostgreSQL."""
    with serving() as server:
        yield Given({"store": server.empty(), "lease_s": 10.0}, tool=server)


@fault(
    "PostgreSQL killed and restarted",
    "SIGQUIT to the PostgreSQL server that keeps the facts, and a new start after 2 s",
    declared_by="StoreRefused",
    prepare=on_postgres,
)
def kill_postgres(trial: Trial) -> Why:
    server = trial.cluster.tool
    trial.plant(lambda: server.stop(signal.SIGQUIT))
    time.sleep(2)  # the fault itself
    server.start()
    trial.lift(lambda: None)
    trial.waits_for("StoreRefused")
    assert not trial.since("WorkerLost")
    return Why(("outage",), "could store no facts for .*postgresql://.* is not usable")


def fails_and_commits_again(trial: Trial, strike: Callable[[], None], undo: Callable[[], None]):
    """Plant a fault of the storage until a checkpoint fails; returns that checkpoint's id."""
    trial.plant(strike)
    failed = trial.waits_for("CheckpointFailed", task=trial.task)
    trial.trains(5)
    trial.lift(undo)
    after = len(trial.watcher.facts)
    until(
        lambda: [
            each
            for each in trial.since("CheckpointCommitted", task=trial.task)
            if each["position"] >= after
        ],
        "a checkpoint after the fault",
        WAIT_S,
    )
    assert not trial.since("WorkerLost")
    return failed["fields"]["checkpoint"]


@fault(
    "checkpoint disk full",
    "the disk of the checkpoints is full until one has failed, then freed",
    declared_by="CheckpointFailed",
    prepare=checkpoint_disk,
    needs=("mount",),
)
def fill_checkpoint_disk(trial: Trial) -> Why:
    tool = trial.cluster.tool
    name = fails_and_commits_again(trial, tool.fill, tool.free)
    return Why(("checkpoint", name, f"task={trial.task}"), "No space left on device")


@fault(
    "checkpoint disk read-only",
    "the disk of the checkpoints is read-only until one has failed",
    declared_by="CheckpointFailed",
    prepare=checkpoint_disk,
    needs=("mount",),
)
def read_only_disk(trial: Trial) -> Why:
    tool = trial.cluster.tool
    name = fails_and_commits_again(trial, tool.read_only, tool.writable)
    return Why(("checkpoint", name, f"task={trial.task}"), "Read-only file system")


@contextmanager
def on_s3(folder: Path) -> Iterator[Given]:
    """The checkpoints on an S3 server, behind a proxy that answers as it is told."""
    with ExitStack() as opened:
        (folder / "s3").mkdir()
        upstream = opened.enter_context(running(folder / "s3"))
        settings, faults = opened.enter_context(faulty_proxy(upstream))
        names = [n for n in settings.__struct_fields__ if n.startswith("aws_")]
        aws = {n: getattr(settings, n) for n in names if isinstance(getattr(settings, n), str)}
        variables = {name.upper(): value for name, value in aws.items()}
        yield Given({"checkpoint_dir": f"s3://{BUCKET}/runs", **aws}, variables, tool=faults)


@fault(
    "S3 refuses parts",
    "S3 denies every PUT of a part until a checkpoint has failed",
    declared_by="CheckpointFailed",
    prepare=on_s3,
)
def s3_denies(trial: Trial) -> Why:
    faults = trial.cluster.tool
    name = fails_and_commits_again(
        trial,
        lambda: faults.always("denied", "PUT", "part-"),
        lambda: faults.always(""),
    )
    return Why(("checkpoint", name, f"task={trial.task}"), "403 AccessDenied")
