"""Actions of `strata checkpoints` on one checkpoint.

`verify` and `pull` read the storage directly, because hundreds of gigabytes should not go through
the coordinator. A name with a `/` is the checkpoint's location; anything else is an id, which the
coordinator resolves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.manifest import MANIFEST_SUFFIX, Manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.transfer import copy_checkpoint
from strata.cli.support.rest_client import Api, reach
from strata.cli.support.safe_console import SafeConsole
from strata.cli.support.tables import console, plain, print_json, size
from strata.config import load_process
from strata.coordinator.rest.action_responses import PinResponse
from strata.coordinator.rest.response_models import CheckpointDetail
from strata.errors import AlreadyExists, InvalidArgument, NotAllowedNow, NotFound, Unavailable
from strata.storage.backend import StorageBackend
from strata.storage.locations import open_storage


def show(api: Api, checkpoint: str, task: str, as_json: bool) -> None:
    """Print a checkpoint with its parts."""
    answer = api.get(f"/api/checkpoints/{checkpoint}", task_id=task)
    if as_json:
        return print_json([answer.body])
    found = api.decode(answer.body, CheckpointDetail)
    screen = console()
    screen.print(Text.assemble((plain(found.id), "bold"), f"  {found.status}"))
    for name, value in (
        ("task", plain(found.task_id)),
        ("step", f"{found.step}, epoch {found.epoch}"),
        ("size", size(found.size)),
        (
            "new",
            f"{size(found.size_new)} written, the rest shared with earlier checkpoints"
            if found.size_new != found.size
            else "",
        ),
        ("path", plain(found.path) or "–"),
        ("also in", ", ".join(plain(tier) for tier in found.tiers[1:])),
        ("metrics", ", ".join(f"{plain(k)} {each:.6g}" for k, each in found.metrics.items())),
        ("kept", plain(", ".join(found.kept_because))),
        ("reason", plain(found.reason)),
    ):
        if value:
            screen.print(f"  {name:8}{value}", highlight=False, markup=False)
    for part in found.written:
        line = f"  rank {part.rank:<5}{size(part.size):>10}  {plain(part.worker_id)}"
        screen.print(line, highlight=False, markup=False)
    missing = found.parts_expected - len(found.written)
    if missing:
        screen.print(f"  {missing} of {found.parts_expected} parts are missing", markup=False)


def save(api: Api, task: str) -> None:
    """Ask the workers of a task to save a checkpoint."""
    if not task:
        raise InvalidArgument("save needs a task", hint="add --task TASK")
    api.post(f"/api/tasks/{task}/checkpoint")
    console().print(Text.assemble(("✓ ", "green"), f"{plain(task)} will save at its next step"))


def pin(api: Api, checkpoint: str, task: str, note: str) -> None:
    """Protect a checkpoint from deletion."""
    api.post(f"/api/checkpoints/{checkpoint}/pin", {"note": note}, task_id=task)
    console().print(Text.assemble(("✓ ", "green"), f"{plain(checkpoint)} is pinned"))


def unpin(api: Api, checkpoint: str, task: str) -> None:
    """Release a pinned checkpoint; says whether it is still kept."""
    answer = api.delete(f"/api/checkpoints/{checkpoint}/pin", task_id=task)
    kept = ", ".join(api.decode(answer, PinResponse).kept_because)
    outcome = f"still kept: {plain(kept)}" if kept else "deleted, because no other rule keeps it"
    console().print(Text.assemble(("✓ ", "green"), f"{plain(checkpoint)} is {outcome}"))


def remove(api: Api, checkpoint: str, task: str) -> None:
    """Delete a checkpoint."""
    api.delete(f"/api/checkpoints/{checkpoint}", task_id=task)
    console().print(Text.assemble(("✓ ", "green"), f"{plain(checkpoint)} is deleted"))


def verify(url: str | None, checkpoint: str, task: str) -> None:
    """Read a whole checkpoint and verify its checksums; raises if it is damaged."""
    storage, manifest = located(url, checkpoint, task)
    with (
        CheckpointReader(storage, manifest) as reader,
        progress_bar("verifying", manifest.whole_bytes) as report,
    ):
        verified_bytes = reader.verify(report)
    line = f"{manifest.checkpoint_id}: {size(verified_bytes)} verified"
    console().print(Text.assemble(("✓ ", "green"), line))


def pull(url: str | None, checkpoint: str, task: str, target: str) -> None:
    """Copy a checkpoint to a folder or bucket: its parts, then its manifest."""
    storage, manifest = located(url, checkpoint, task)
    goal = open_storage(target or ".", load_process({}))
    name = manifest.checkpoint_id + MANIFEST_SUFFIX
    if goal.exists(name):
        raise AlreadyExists(
            f"{goal.url} already has {manifest.checkpoint_id}", hint="choose another target folder"
        )
    with progress_bar("copying", manifest.size_bytes) as report:
        copy_checkpoint(storage, goal, manifest, report)
    console().print(
        Text.assemble(("✓ ", "green"), f"{manifest.checkpoint_id} is in {plain(goal.url)}")
    )


def located(url: str | None, checkpoint: str, task: str) -> tuple[StorageBackend, Manifest]:
    """The storage of a checkpoint and its manifest."""
    where = checkpoint.removesuffix(MANIFEST_SUFFIX).rstrip("/")
    if "/" not in where:
        api = reach(url)
        found = api.decode(
            api.get(f"/api/checkpoints/{where}", task_id=task).body, CheckpointDetail
        )
        if found.status != "completed":
            raise NotAllowedNow(
                f"checkpoint {found.id} is {found.status}", hint="choose a completed checkpoint"
            )
        return nearest(found.tiers)
    return nearest([where])


def nearest(tiers: list[str]) -> tuple[StorageBackend, Manifest]:
    """The first storage place that has the checkpoint."""
    *nearer, last = tiers
    for tier in nearer:
        try:
            return opened(tier)
        except (NotFound, Unavailable) as error:
            console().print(f"{plain(str(error))}; trying the next place", markup=False)
    return opened(last)


def opened(tier: str) -> tuple[StorageBackend, Manifest]:
    folder, _, name = tier.rpartition("/")
    storage = open_storage(folder, load_process({}))
    return storage, Catalog(storage).read(name)


@contextmanager
def progress_bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr, if it is a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=SafeConsole(stderr=True),
        transient=True,
    ) as bar:
        number = bar.add_task(what, total=total_bytes)
        yield lambda done_bytes: bar.update(number, completed=done_bytes)
