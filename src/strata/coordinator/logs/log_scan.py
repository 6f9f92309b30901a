"""Reads the log backwards, block by block, until a page is full or a time limit is reached.

A scan keeps the number of the last line it has read (`before`) and gets the present segments at
each step: meanwhile the newest may be sealed and the oldest deleted. The time limit is checked
between blocks, so that every scan makes progress.
"""

from bisect import bisect_left
from collections.abc import Callable

from strata.coordinator.logs.log_entries import LogEntry, decode_line
from strata.coordinator.logs.log_query import Matcher
from strata.coordinator.logs.log_segments import Block, Index, Segment
from strata.core.events import Now
from strata.errors import Corrupt

PAGE_CHARS = 4 * 1024 * 1024
"""Maximum length of all messages of a page: a line may have 64 KiB."""


class Scan:
    """Collects matching lines, newest first; `reached_end` is true if there are no older lines."""

    def __init__(
        self,
        matcher: Matcher,
        before: int,
        limit: int,
        deadline_ns: int,
        clock: Callable[[], Now],
    ) -> None:
        self.entries: list[LogEntry] = []
        self.before = before
        self.reached_end = False
        self.out_of_time = False
        self._matcher = matcher
        self._limit = limit
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._chars = 0
        self._segment: Segment | None = None
        self._index: Index | None = None

    @property
    def done(self) -> bool:
        """Whether the page is complete or the time limit reached."""
        full = len(self.entries) >= self._limit or self._chars >= PAGE_CHARS
        return full or self.out_of_time or self.reached_end

    def next_block(self, segments: list[Segment]) -> tuple[Block, bytes] | None:
        """The next block that may have a match, with its bytes; other blocks are skipped."""
        stop = bisect_left(segments, self.before, key=lambda segment: segment.first_seq)
        for segment in reversed(segments[:stop]):
            block = self._newest_block(segment)
            if block is not None:
                try:
                    return block, segment.read(block)
                except Corrupt:
                    return block, b""
            self.before = segment.first_seq
            if self._late():
                return None
        self.reached_end = True
        return None

    def _newest_block(self, segment: Segment) -> Block | None:
        if not self._matcher.wants_span(segment.span):
            return None
        if segment is not self._segment or self._index is None:
            self._segment = segment
            self._index = segment.index()
        if not self._matcher.wants_index(self._index):
            return None
        blocks = self._index.blocks
        stop = bisect_left(blocks, self.before, key=lambda block: block.span.first_seq)
        wanted = (b for b in reversed(blocks[:stop]) if self._matcher.wants_span(b.span))
        return next(wanted, None)

    def read(self, block: Block, lines: bytes) -> None:
        """Match the lines of a block, the last one first."""
        if self._matcher.wants_bytes(lines):
            rows = lines.split(b"\n")
            rows.pop()
            for row in reversed(rows):
                if self._matcher.wants_bytes(row):
                    self._test(decode_line(row))
                if self.done:
                    return
        self.before = block.span.first_seq
        self._late()

    def _test(self, entry: LogEntry) -> None:
        if entry.seq < self.before:
            self.before = entry.seq
            if self._matcher.wants(entry):
                self.entries.append(entry)
                self._chars += len(entry.message)

    def _late(self) -> bool:
        self.out_of_time = self._clock().mono_ns >= self._deadline_ns
        return self.out_of_time
