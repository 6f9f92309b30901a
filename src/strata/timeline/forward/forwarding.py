"""Send what a task logged to another tool, once, also if the sender is killed in between.

Before a batch is sent, its items are noted in a state file. A sender that starts again reads the
last batches again, asks the destination which of their items it has, and sends only the others.

No such tool can delete points. If the task resumes at a step before points that were sent, its
whole history is sent again, without the undone steps, as a new run of that tool; the earlier run is
marked.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct, field

from strata.core.workers.worker_facts import MediaLogged
from strata.errors import UNDECODABLE, Corrupt
from strata.files import write_whole
from strata.timeline.forward.logged_pages import LoggedItem, LoggedPage, LoggedPages
from strata.timeline.read.logged_items import content
from strata.timeline.read.run_timeline import Timeline

BATCH = 500
POLL_S = 1.0
SETTLED_S = 3.0
"""How long after a task's end its last events may still arrive."""


class Batch(Struct):
    """Items that were sent, or were about to be: the cursor before them, and their references."""

    cursor: str
    refs: list[str]


class Progress(Struct):
    """What a sender has sent. `line` numbers the runs of the other tool that a task has.

    `rows` items were sent before the kept batches. `resumed` is the number of recoveries that are
    taken into account, `done` the highest step of an item that was sent. `helper` is a process that
    writes for the sender: its pid and start time.
    """

    key: str = ""
    line: int = 0
    rows: int = 0
    resumed: int = 0
    done: int = 0
    cursor: str = ""
    batches: list[Batch] = field(default_factory=list)
    helper: tuple[int, float] | None = None


class Source(Protocol):
    """What one rank of a task logged."""

    rank: int

    def page(self, cursor: str) -> LoggedPage:
        """The items after a cursor."""

    def media(self, item: LoggedItem) -> MediaLogged:
        """The content of an image, text or histogram."""


class LogSource:
    """What one rank of a task logged, read from its log."""

    def __init__(self, timeline: Timeline, task: str, rank: int) -> None:
        self.rank = rank
        self._timeline = timeline
        self._task = task
        self._pages = LoggedPages(timeline)

    def page(self, cursor: str) -> LoggedPage:
        """The items after a cursor."""
        return self._pages.page(self._task, self.rank, cursor, BATCH)

    def media(self, item: LoggedItem) -> MediaLogged:
        """The content of an image, text or histogram."""
        return content(self._timeline.record(item.ref))


class Destination(Protocol):
    """A tool that shows metrics; calls wait while it does not answer."""

    kept_batches: int

    def begin(self, page: LoggedPage, progress: Progress) -> None:
        """Open or continue the run of the present line."""

    def open(self, page: LoggedPage) -> None:
        """Prepare to send, before the items are noted."""

    def missing(self, items: Sequence[LoggedItem], progress: Progress) -> list[LoggedItem]:
        """Those of some items that may have been sent which the tool does not have."""

    def send(self, items: Sequence[LoggedItem], page: LoggedPage) -> None:
        """Send items in order; when it returns, the tool has taken them."""

    def supersede(self, step: int, page: LoggedPage) -> None:
        """Mark the run: steps from `step` on were undone, the next line has the task's history."""

    def end(self, page: LoggedPage | None) -> None:
        """Close the run; without a page the task may go on."""


class Forwarder:
    """Sends the items of a source to a destination."""

    def __init__(self, source: Source, destination: Destination, state: Path | None) -> None:
        self.sent = 0
        self._source = source
        self._destination = destination
        self._state = state
        self._progress = self._loaded()
        self._doubtful: set[str] = set()

    def run(self, follow: bool, wait: Callable[[float], None] = time.sleep) -> None:
        """Send all items; with `follow` until the task has ended."""
        self._open()
        settled_s = 0.0
        while True:
            page = self._source.page(self._progress.cursor)
            if self._rolled_back(page):
                self._open()
                continue
            self._send(page)
            if page.more or page.items:
                settled_s = 0.0
            elif not follow or not page.live or settled_s >= SETTLED_S:
                break
            else:
                wait(POLL_S)
                settled_s += POLL_S if page.ended else 0.0
        self._destination.end(page if page.ended else None)
        self._progress.rows += len(self._in_order())
        self._progress.batches = []
        self._save()

    def _open(self) -> None:
        """Begin or continue a line; what may have been sent is read again."""
        page = self._source.page("")
        progress = self._progress
        key = f"{page.task}-{int(page.submitted_ms)}-{self._source.rank}"
        if progress.key not in ("", key):
            raise Corrupt(
                f"{self._state} is the state of another export ({progress.key})",
                hint="choose another --state, or delete the file to send everything again",
            )
        if not progress.key:
            progress.key, progress.resumed = key, len(page.resumed)
        self._destination.begin(page, progress)
        self._doubtful = {ref for batch in progress.batches for ref in batch.refs}
        if progress.batches:
            progress.cursor = progress.batches[0].cursor
            progress.batches = [Batch(cursor=progress.cursor, refs=self._in_order())]
        self._save()

    def _in_order(self) -> list[str]:
        """The references of all kept batches."""
        return [ref for batch in self._progress.batches for ref in batch.refs]

    def _rolled_back(self, page: LoggedPage) -> bool:
        """Begin a new line if a recovery undid what was sent."""
        progress = self._progress
        steps = page.resumed[progress.resumed :]
        progress.resumed = len(page.resumed)
        if not steps or min(steps) >= progress.done:
            return False
        self._destination.supersede(min(steps), page)
        self._progress = Progress(line=progress.line + 1)
        return True

    def _send(self, page: LoggedPage) -> None:
        """Send the items of a page that the destination does not have."""
        items = self._fresh(page)
        if items:
            self._destination.open(page)
            self._note(items)
            self._destination.send(items, page)
            self.sent += len(items)
        self._progress.cursor = page.cursor
        if not page.more:
            self._doubtful = set()

    def _fresh(self, page: LoggedPage) -> list[LoggedItem]:
        """The items of a page that the destination does not have."""
        doubtful = [item for item in page.items if item.ref in self._doubtful]
        if not doubtful:
            return page.items
        self._doubtful -= {item.ref for item in doubtful}
        missing = {item.ref for item in self._destination.missing(doubtful, self._progress)}
        there = {item.ref for item in doubtful} - missing
        return [item for item in page.items if item.ref not in there]

    def _note(self, items: Sequence[LoggedItem]) -> None:
        """Store what is about to be sent."""
        progress, kept = self._progress, self._destination.kept_batches
        progress.done = max(progress.done, *(item.done for item in items))
        if not kept:
            return
        refs = [item.ref for item in items]
        if self._doubtful:  # while old batches are read again, their cursor stays
            known = set(progress.batches[0].refs)
            progress.batches[0].refs += [ref for ref in refs if ref not in known]
        else:
            progress.batches.append(Batch(cursor=progress.cursor, refs=refs))
            while len(progress.batches) > kept:
                progress.rows += len(progress.batches.pop(0).refs)
        self._save()

    def _loaded(self) -> Progress:
        if self._state is None or not self._state.exists():
            return Progress()
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=Progress)
        except UNDECODABLE as error:
            raise Corrupt(
                f"{self._state} is not the state of an export: {error}",
                hint="choose another --state",
            ) from error

    def _save(self) -> None:
        if self._state is not None and self._destination.kept_batches:
            self._state.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._state, msgspec.json.encode(self._progress))
