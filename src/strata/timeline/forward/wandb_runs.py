"""Runs of Weights & Biases, with its library.

Each item is one row, numbered from 0: W&B drops rows whose step is lower than that of the row
before, and the number says how many rows it has. The task's step is the value `step`, and all
charts are drawn over it. A run that is continued is asked for its rows: offline, its files are
read; online, the server answers.

The library writes in a process of its own, which outlives a sender that was killed; a new sender
waits for its end before it reads the files.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import wandb
from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk.internal.datastore import DataStore

from strata.core.workers.worker_facts import MediaLogged
from strata.errors import Corrupt, Unauthenticated, Unavailable
from strata.timeline.forward.forwarding import Batch, Progress, Source
from strata.timeline.forward.logged_pages import LoggedItem, LoggedPage
from strata.timeline.forward.tensorboard_files import png_of

STEP = "step"
ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class WandbRuns:
    """Sends the items of a task to a project of Weights & Biases."""

    kept_batches = 8

    def __init__(
        self, folder: Path, project: str, source: Source, say: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self._project = project
        self._source = source
        self._say = say
        self._run: Any = None
        self._offline = wandb.setup().settings.mode in ("offline", "dryrun")
        self._key = self._name = ""
        self._progress = Progress()
        self._row = 0
        self._config: dict[str, Any] = {}

    def begin(self, page: LoggedPage, progress: Progress) -> None:
        """Learn how many rows the run has. Offline, it is opened with the first row, because each
        opening makes a folder."""
        wait_for_end(progress.helper, self._say)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._progress = progress
        self._key = "".join(e if e in ALLOWED else "-" for e in f"{progress.key}-{progress.line}")
        self._name = page.task if not progress.line else f"{page.task} ({progress.line + 1})"
        self._run, self._config = None, {}
        self._row = sum(1 for _ in rows_of(self.folder, self._key))
        if not self._offline:
            self.open(page)
            self._row = self._run.step
        if self._row < progress.rows:
            raise Corrupt(
                f"the run {self._key} has {self._row} rows, but {progress.rows} were sent to it",
                hint="choose another --state to send everything again, to a project without it",
            )
        refs = [ref for batch in progress.batches for ref in batch.refs]
        if progress.batches:
            there = refs[: self._row - progress.rows]
            progress.batches = [Batch(cursor=progress.batches[0].cursor, refs=there)]

    def open(self, page: LoggedPage) -> None:
        """Start the library's run, and its process."""
        if self._run is not None:
            return
        try:
            self._run = self._started(page)
        except wandb.errors.UsageError as error:
            if "API key" not in str(error):
                raise
            raise Unauthenticated(
                "W&B has no API key",
                hint="run `wandb login`, or set WANDB_MODE=offline to write files for `wandb sync`",
            ) from error
        except wandb.errors.CommError as error:
            raise Unavailable(
                f"W&B did not open the run: {error}", hint="check the API key and the network"
            ) from error
        helpers = [each for each in psutil.Process().children() if "wandb" in each.name()]
        if helpers:
            self._progress.helper = (helpers[0].pid, helpers[0].create_time())
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        self._describe(page)

    def _started(self, page: LoggedPage) -> Any:
        """The library's run, with the key of this export."""
        return wandb.init(
            project=self._project,
            id=self._key,
            name=self._name,
            group=page.task,
            tags=["strata"],
            dir=str(self.folder),
            resume=None if self._offline else "allow",
            settings=wandb.Settings(
                x_disable_stats=True,
                x_disable_meta=True,
                console="off",
                disable_git=True,
                disable_code=True,
                silent=True,
            ),
        )

    def missing(self, items: Sequence[LoggedItem], progress: Progress) -> list[LoggedItem]:
        """None: `begin` has removed the items that the run lacks from the batches."""
        return []

    def send(self, items: Sequence[LoggedItem], page: LoggedPage) -> None:
        """Log each item as a row."""
        self._describe(page)
        for item in items:
            row: dict[str, Any] = dict(item.numbers)
            if item.media is not None:
                row[item.name] = shown(self._source.media(item))
            self._run.log(
                {**row, STEP: item.step, "_timestamp": item.time_ms / 1000}, step=self._row
            )
            self._row += 1

    def supersede(self, step: int, page: LoggedPage) -> None:
        """Note it in the summary and end the run."""
        self.open(page)
        self._run.summary["strata/undone_from_step"] = step
        self._run.finish(exit_code=1)

    def end(self, page: LoggedPage | None) -> None:
        """Wait until all rows are written or uploaded."""
        if self._run is None:
            return
        failed = page is not None and page.state != "completed"
        self._run.finish(exit_code=int(failed))

    def _describe(self, page: LoggedPage) -> None:
        config = {
            **page.config,
            "strata.task": page.task,
            "strata.rank": self._source.rank,
            "strata.parent": page.parent,
        }
        if config.items() - self._config.items():
            self._config |= config
            self._run.config.update(self._config, allow_val_change=True)


def shown(media: MediaLogged) -> Any:
    """An image, text or histogram as the library takes it."""
    if media.media == "text":
        return media.text
    if media.media == "histogram":
        return wandb.Histogram(np_histogram=(np.array(media.counts), np.array(media.edges)))
    import io

    import PIL.Image

    with PIL.Image.open(io.BytesIO(png_of(media))) as image:
        image.load()
        return wandb.Image(image, caption=media.caption or None)


def rows_of(folder: Path, key: str) -> Iterator[dict[str, str]]:
    """The rows in the offline files of a run, as JSON by name."""
    for path in sorted(folder.glob(f"wandb/*-{key}/run-{key}.wandb")):
        store: Any = DataStore()
        store.open_for_scan(str(path))
        while (data := scanned(store)) is not None:
            record: Any = pb.Record.FromString(data)
            if record.HasField("history"):
                yield {
                    item.key or "/".join(item.nested_key): item.value_json
                    for item in record.history.item
                }


def scanned(store: Any) -> bytes | None:
    """The next record; None at the end, also if a killed writer left half a record there."""
    try:
        data: bytes | None = store.scan_data()
        return data
    except AssertionError:
        return None


def wait_for_end(helper: tuple[int, float] | None, say: Callable[[str], None]) -> None:
    """Wait until the process of an earlier sender has written its files."""
    said = False
    while helper is not None:
        try:
            process = psutil.Process(helper[0])
            if process.create_time() != helper[1] or process.status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        if not said:
            say(f"waiting for process {helper[0]}, which still writes rows of an earlier export")
            said = True
        time.sleep(0.1)
