"""Store of log lines on disk, with a size limit.

Lines are buffered in memory, and a thread of the store writes them in batches every `FLUSH_S`
seconds: storing a line costs one or two microseconds and never waits for the disk. A process that
is killed loses at most the buffered lines; a power failure may also lose the end of the open
segment. Facts have stronger guarantees; log lines do not need them.

Lines are ordered by arrival: each has a number, the newest the highest. Timestamps are set by the
writers and may be in another order.

No line is lost without notice. When the store exceeds `max_bytes` the oldest segment is deleted,
and `stats` counts the deleted lines. When lines arrive faster than the disk stores them, or the
disk fails, a line in the log says how many were lost.

`append` and `extend` may be called from any thread, and from a finalizer or a signal handler during
another call, as `logging` may be. Therefore they use a reentrant queue and hold a lock only for
counting; numbers are assigned when lines are written. `recent` reads files: from an event loop,
call it in a thread.

Written by hand instead of using SQLite FTS5, because lines are written all the time and searched
now and then. benchmarks/bench_log_search.py, 2 M lines, a search returns the newest 100 matches:

| | this store | FTS5, words | FTS5, trigrams |
| --- | --- | --- | --- |
| lines stored per CPU second | 563,000 | 237,000 | 93,000 |
| bytes on disk per line | 14 | 111 | 212 |
| search for a frequent word | 2.4 ms | 0.2 ms | 0.5 ms |
| search for a rare word | 0.8 s | 0.05 ms | 0.09 ms |

So the default limit of 256 MB holds 19 M lines instead of 1.2 M. Only FTS5 with trigrams finds
parts of words, as this store does; regular expressions need a scan with either.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct

from strata.coordinator.engine.clock import read_clock
from strata.coordinator.logs.followers import Follower
from strata.coordinator.logs.log_entries import (
    OPENING_BITS,
    LogEntry,
    LogLine,
    Skipped,
    entry_id,
    make,
)
from strata.coordinator.logs.log_query import LogPage, LogQuery, Matcher, cursor_seq
from strata.coordinator.logs.log_scan import Scan
from strata.coordinator.logs.log_segments import (
    LINES_AT_ONCE,
    NAME,
    OpenSegment,
    Segment,
    file_name,
    load,
)
from strata.core.events import Now
from strata.errors import Unavailable

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
MIN_MAX_BYTES = 512 * 1024
SEGMENT_BYTES = 16 * 1024 * 1024
FLUSH_S = 0.05
BUFFER_LINES = 200_000
BUFFER_CHARS = 64 * 1024 * 1024
MAX_LIMIT = 10_000
FOLLOW_BUFFER = 2_000
FROM_THE_NEWEST = 2**63


class LogStats(Struct, frozen=True):
    """Numbers of stored and lost lines.

    `dropped_lines` were deleted with old segments; `lost_lines` were never stored by this process.
    """

    lines: int
    size_bytes: int
    max_bytes: int
    dropped_lines: int
    lost_lines: int
    damaged_segments: int
    oldest_ms: int | None


class LogStore:
    """The log in a folder, created if missing; one process at a time."""

    def __init__(
        self,
        path: str | Path,
        max_bytes: int = DEFAULT_MAX_BYTES,
        clock: Callable[[], Now] = read_clock,
    ) -> None:
        self.path = Path(path)
        self.max_bytes = max(max_bytes, MIN_MAX_BYTES)
        self._segment_bytes = min(SEGMENT_BYTES, self.max_bytes // 8)
        self._clock = clock
        self._files = threading.Lock()
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="strata-log-reader")
        self._counting = threading.RLock()
        self._incoming: SimpleQueue[tuple[int, tuple[LogLine, ...]]] = SimpleQueue()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._waiting_lines = 0
        self._waiting_chars = 0
        self._lost = 0
        self._lost_unreported = 0
        self._refused = False
        self._followers: list[Follower] = []
        self._segments: list[Segment] = []
        self._open = self._load()
        self._next = self._open.first_seq
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="strata-logs", daemon=True)
        self._writer.start()

    def _load(self) -> OpenSegment:
        """Open the segments in the folder, and start a new one with unused numbers."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for draft in self.path.glob("*.tmp"):
                if NAME.fullmatch(draft.stem):
                    draft.unlink()
            files = [file for file in sorted(self.path.iterdir()) if NAME.fullmatch(file.name)]
            self._segments = [segment for file in files if (segment := load(file))]
            newest = self._segments[-1] if self._segments else None
            highest = Segment(files[-1]).first_seq if files else 0
            opening = (highest >> OPENING_BITS) + 1
            before = newest.before + newest.span.count if newest else 0
            opened = OpenSegment(self.path / file_name(opening << OPENING_BITS, before))
        except OSError as error:
            raise Unavailable(
                f"the log in {self.path} cannot be opened: {error.strerror}",
                hint="make the folder writable",
            ) from error
        for segment in self._segments:
            if segment.damaged:
                log.warning("log file %s is damaged; its lines are not shown", segment.path)
        self._segments.append(opened)
        return opened

    def append(self, line: LogLine) -> None:
        """Store one line."""
        self.extend((line,))

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Store lines in this order."""
        taken = tuple(lines)
        chars = sum([len(line.message) for line in taken])
        with self._counting:
            if self._waiting_lines >= BUFFER_LINES or self._waiting_chars >= BUFFER_CHARS:
                self._lost_unreported += len(taken)
                return
            self._waiting_lines += len(taken)
            self._waiting_chars += chars
        self._incoming.put((self._clock().wall_ns // 1_000_000, taken))
        if self._bell.empty():
            self._bell.put(None)

    def flush(self) -> None:
        """Write the buffered lines, and pass them to followers."""
        with self._files:
            self._flush()

    def _flush(self) -> None:
        entries = self._take()
        for first in range(0, len(entries), LINES_AT_ONCE):
            try:
                self._open.append(entries[first : first + LINES_AT_ONCE])
            except OSError as error:
                self._note_refusal(error, len(entries) - first)
                del entries[first:]
                break
            self._keep_bounds()
        if entries:
            for follower in list(self._followers):
                follower.offer(entries)

    def _take(self) -> list[LogEntry]:
        """Number the buffered lines, and add a line that counts lost ones."""
        entries: list[LogEntry] = []
        chars = 0
        for _ in range(self._incoming.qsize()):
            now_ms, lines = self._incoming.get()
            entries += [make(seq, line, now_ms) for seq, line in enumerate(lines, self._next)]
            chars += sum([len(line.message) for line in lines])
            self._next += len(lines)
        with self._counting:
            self._waiting_lines -= len(entries)
            self._waiting_chars -= chars
            lost, self._lost_unreported = self._lost_unreported, 0
            self._lost += lost
        if lost:
            report = LogLine(
                level="warn", message=f"{lost} log lines could not be stored", source="coordinator"
            )
            entries.append(make(self._next, report, self._clock().wall_ns // 1_000_000))
            self._next += 1
        return entries

    def _keep_bounds(self) -> None:
        """Seal a full segment, and delete the oldest segments above the size limit."""
        try:
            if self._open.size_bytes >= self._segment_bytes:
                self._roll()
            while self._segments[1:] and self._size_bytes() > self.max_bytes:
                self._segments[0].path.unlink(missing_ok=True)
                self._segments.pop(0)
        except OSError as error:
            self._note_refusal(error, 0)
        else:
            self._refused = False

    def _size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def _roll(self) -> None:
        """Seal the open segment and start the next."""
        full = self._open
        sealed = full.seal()
        before = full.before + full.span.count
        self._open = OpenSegment(self.path / file_name(full.span.last_seq + 1, before))
        self._segments[-1:] = [sealed, self._open]
        full.remove()

    def _note_refusal(self, error: OSError, count: int) -> None:
        with self._counting:
            self._lost_unreported += count
        if not self._refused:
            self._refused = True
            log.error("log lines cannot be written to %s: %s", self.path, error.strerror)

    def _write(self) -> None:
        while not self._closing.is_set():
            self._bell.get()
            self._closing.wait(FLUSH_S)
            self.flush()

    def recent(
        self,
        query: LogQuery | None = None,
        limit: int = 100,
        cursor: str = "",
        budget_s: float = 1.0,
    ) -> LogPage:
        """Matching lines, newest first, from `cursor` on; stops after about `budget_s`."""
        self.flush()
        matcher = Matcher(query or LogQuery())
        before = cursor_seq(cursor) if cursor else FROM_THE_NEWEST
        deadline_ns = self._clock().mono_ns + int(budget_s * 1e9)
        scan = Scan(matcher, before, min(max(limit, 1), MAX_LIMIT), deadline_ns, self._clock)
        while not scan.done:
            with self._files:
                found = scan.next_block(self._segments)
            if found is not None:
                scan.read(*found)
        total = self.stats().lines if matcher.unfiltered else len(scan.entries)
        exact = matcher.unfiltered or (not cursor and scan.reached_end)
        older = "" if scan.reached_end else entry_id(scan.before)
        return LogPage(
            entries=scan.entries,
            cursor=older,
            total=total,
            exact=exact,
            complete=not scan.out_of_time,
        )

    async def follow(
        self, query: LogQuery | None = None, backlog: int = 0, buffer: int = FOLLOW_BUFFER
    ) -> AsyncIterator[LogEntry | Skipped]:
        """New matching lines, after up to `backlog` stored ones."""
        query = query or LogQuery()
        follower = Follower(Matcher(query), max(buffer, 1))
        in_thread = asyncio.get_running_loop().run_in_executor
        seen = await in_thread(self._reading, self._begin, follower)
        try:
            if backlog > 0:
                page = await in_thread(self._reading, self.recent, query, backlog)
                for entry in reversed(page.entries):
                    yield entry
                    seen = max(seen, entry.seq)
            while batch := await follower.next():
                for item in batch:
                    if isinstance(item, Skipped) or item.seq > seen:
                        yield item
        finally:
            self._followers.remove(follower)

    def _begin(self, follower: Follower) -> int:
        """Register a follower for new lines; returns the number of the last stored line."""
        with self._files:
            self._flush()
            self._followers.append(follower)
            if self._closing.is_set():
                follower.close()
            return self._next - 1

    @property
    def followers(self) -> int:
        """Number of followers."""
        return len(self._followers)

    def stats(self) -> LogStats:
        """Present numbers of stored and lost lines."""
        segments = list(self._segments)
        kept = [segment for segment in segments if segment.span.count]
        return LogStats(
            lines=sum(segment.span.count for segment in kept),
            size_bytes=self._size_bytes(),
            max_bytes=self.max_bytes,
            dropped_lines=segments[0].before,
            lost_lines=self._lost + self._lost_unreported,
            damaged_segments=sum(segment.damaged for segment in segments),
            oldest_ms=min((segment.span.from_ms for segment in kept), default=None),
        )

    def close(self) -> None:
        """Write the buffered lines and end the followers; closing twice is harmless."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._bell.put(None)
        self._writer.join()
        with self._files:
            self._flush()
            self._open.close()
            followers = list(self._followers)
        for follower in followers:
            follower.close()
