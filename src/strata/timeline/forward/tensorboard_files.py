"""Event files for TensorBoard: one folder per task.

A file has the whole history of the task. One that replaces another (the export began again, or a
recovery undid steps that were written) starts with `SessionLog.START` at step 0, at which
TensorBoard drops the points of the files before. The last file before stays, because a TensorBoard
that reads it would not find the next one; those before it are deleted.
"""

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from strata.core.workers.worker_facts import ConfigValue, MediaLogged
from strata.timeline.forward import event_records
from strata.timeline.forward.forwarding import Progress, Source
from strata.timeline.forward.logged_pages import LoggedItem, LoggedPage

SUFFIX = "strata"


class TensorBoardFolder:
    """Writes the event file of a task."""

    kept_batches = 0

    def __init__(self, folder: Path, source: Source) -> None:
        self.folder = folder
        self._source = source
        self._file: BinaryIO | None = None
        self._config: dict[str, ConfigValue] = {}

    def begin(self, page: LoggedPage, progress: Progress) -> None:
        """Start a new file."""
        self.end(None)
        target = self.folder / page.task
        target.mkdir(parents=True, exist_ok=True)
        earlier = sorted(target.glob(f"events.out.tfevents.*.{SUFFIX}"))
        began_s = int(time.time())
        if earlier:  # readers take the files in the order of their names
            began_s = max(began_s, int(earlier[-1].name.split(".")[3]) + 1)
        path = target / f"events.out.tfevents.{began_s:010d}.{SUFFIX}"
        self._file = path.open("xb")
        self._file.write(event_records.version(page.submitted_ms / 1000))
        self._file.write(event_records.restart(page.submitted_ms / 1000))
        self._config = {}
        self._describe(page)
        self._file.flush()
        for each in earlier[:-1]:
            each.unlink(missing_ok=True)

    def open(self, page: LoggedPage) -> None:
        """Do nothing: `begin` has prepared all."""

    def missing(self, items: Sequence[LoggedItem], progress: Progress) -> list[LoggedItem]:
        """All: a new file has none."""
        return list(items)

    def send(self, items: Sequence[LoggedItem], page: LoggedPage) -> None:
        """Append items."""
        assert self._file is not None, "the file was begun"
        self._describe(page)
        for item in items:
            parts = [event_records.scalar(name, value) for name, value in item.numbers.items()]
            if item.media is not None:
                parts.append(self._shown(self._source.media(item)))
            if parts:
                time_s = item.time_ms / 1000
                self._file.write(event_records.values(time_s, item.step, parts))
        self._file.flush()

    def supersede(self, step: int, page: LoggedPage) -> None:
        """Do nothing: the next file replaces this one."""

    def end(self, page: LoggedPage | None) -> None:
        """Close the file."""
        if self._file is None:
            return
        if page is not None:
            now_s = time.time()
            parts = [event_records.outcome(page.state, now_s)]
            self._file.write(event_records.values(now_s, 0, parts))
        self._file.close()
        self._file = None

    def _describe(self, page: LoggedPage) -> None:
        """Write the configuration, if it is new."""
        assert self._file is not None
        if page.config and page.config != self._config:
            self._config |= page.config
            began_s = page.submitted_ms / 1000
            parts = [
                event_records.hyperparameters(self._config, began_s),
                event_records.text("config", table(self._config)),
            ]
            self._file.write(event_records.values(began_s, 0, parts))

    def _shown(self, item: MediaLogged) -> bytes:
        if item.media == "text":
            return event_records.text(item.name, item.text)
        if item.media == "histogram":
            return event_records.histogram(item.name, item.edges, item.counts)
        return event_records.image(item.name, item, png_of(item))


def png_of(item: MediaLogged) -> bytes:
    """The bytes of an image; WebP, which TensorBoard cannot show, as PNG."""
    if item.format != "webp":
        return item.data
    import PIL.Image  # takes long to import

    target = io.BytesIO()
    with PIL.Image.open(io.BytesIO(item.data)) as image:
        image.save(target, format="PNG")
    return target.getvalue()


def table(config: Mapping[str, ConfigValue]) -> str:
    """The configuration as a Markdown table."""
    rows = [f"| {name} | {value} |".replace("\n", " ") for name, value in config.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *rows])
