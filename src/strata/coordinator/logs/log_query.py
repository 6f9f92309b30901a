"""Queries for log lines, and matching.

A query is tested in three steps: against the index entry of a block, against the block's bytes, and
against each line. The second step searches for the query's words in their JSON form, to skip blocks
and lines that cannot match.

A search without `regex` finds text, ignoring the case of ASCII letters. With `regex` it is matched
by RE2, whose time is linear in the text: patterns that take hours in a backtracking engine are
harmless.
"""

import re
from collections.abc import Callable

import msgspec
import re2  # type: ignore[import-untyped]
from msgspec import Struct

from strata.coordinator.logs.log_entries import SEVERITY, Level, LogEntry, clean_name, seq_of
from strata.coordinator.logs.log_segments import Index, Span
from strata.errors import InvalidArgument

MAX_SEARCH_CHARS = 1000
CURSOR = re.compile(r"(?:log_)?[0-9a-f]{1,16}")


class LogQuery(Struct, frozen=True):
    """A filter: lines at least as severe as `level`, and equal to the other given fields.

    `since_ms` is inclusive, `until_ms` exclusive. `after` is the id of a line: only later lines
    match.
    """

    level: Level | None = None
    source: str = ""
    task_id: str = ""
    worker_id: str = ""
    search: str = ""
    regex: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    after: str = ""


class LogPage(Struct, frozen=True):
    """Matching lines, newest first; `cursor` continues with older ones and is empty at the end.

    `total` counts all matching lines if `exact`, otherwise those found so far. A page that is not
    `complete` was ended by the time limit; its cursor continues the search.
    """

    entries: list[LogEntry]
    cursor: str
    total: int
    exact: bool
    complete: bool


def cursor_seq(cursor: str) -> int:
    """The line number in a cursor or an id; raises if it is invalid."""
    if not CURSOR.fullmatch(cursor):
        raise InvalidArgument(
            f"invalid log cursor {cursor[:40]!r}",
            hint="use the cursor of the previous page, or the id of a log entry",
        )
    return seq_of(cursor)


class Matcher:
    """A compiled query."""

    def __init__(self, query: LogQuery) -> None:
        self.query = query
        self.unfiltered = query == LogQuery()
        self.after_seq = cursor_seq(query.after) if query.after else -1
        self.severity = SEVERITY[query.level] if query.level else 0
        wanted = {
            "source": clean_name(query.source),
            "task_id": clean_name(query.task_id),
            "worker_id": clean_name(query.worker_id),
        }
        self._equal = [(name, value) for name, value in wanted.items() if value]
        self._tokens = [f'"{name}":'.encode() + as_json(value) for name, value in self._equal]
        self._found: Callable[[str], object] | None = None
        self._lowered = b""
        if query.search:
            self._prepare_search(query)

    def _prepare_search(self, query: LogQuery) -> None:
        if len(query.search) > MAX_SEARCH_CHARS:
            raise InvalidArgument(
                f"the search has {len(query.search)} characters",
                hint=f"use at most {MAX_SEARCH_CHARS} characters",
            )
        if query.regex:
            self._found = compiled(query.search).search
        else:
            text = query.search.encode("utf-8", "replace").decode()
            self._found = re.compile(re.escape(text), re.IGNORECASE | re.ASCII).search
            self._lowered = as_json(text)[1:-1].lower()

    def wants_span(self, span: Span) -> bool:
        """Whether a span of lines may have a match."""
        query = self.query
        return (
            span.levels >> self.severity != 0
            and span.last_seq > self.after_seq
            and (query.since_ms is None or span.to_ms >= query.since_ms)
            and (query.until_ms is None or span.from_ms < query.until_ms)
        )

    def wants_index(self, index: Index) -> bool:
        """Whether a segment may have lines with the requested names."""
        return not self._equal or index.may_name([value for _, value in self._equal])

    def wants_bytes(self, lines: bytes) -> bool:
        """Whether these bytes may contain a matching line."""
        if self._lowered and self._lowered not in lines.lower():
            return False
        return all(token in lines for token in self._tokens)

    def wants(self, entry: LogEntry) -> bool:
        """Whether a line matches."""
        query = self.query
        return (
            SEVERITY[entry.level] >= self.severity
            and all(getattr(entry, name) == value for name, value in self._equal)
            and (query.since_ms is None or entry.timestamp >= query.since_ms)
            and (query.until_ms is None or entry.timestamp < query.until_ms)
            and (self.after_seq < 0 or entry.seq > self.after_seq)
            and (self._found is None or self._found(entry.message) is not None)
        )


def as_json(text: str) -> bytes:
    """The text in its JSON form, as in a stored line."""
    return msgspec.json.encode(text)


def compiled(pattern: str) -> "re.Pattern[str]":
    """Compile a pattern with RE2; raises if it is invalid."""
    options = re2.Options()
    options.log_errors = False
    try:
        found: re.Pattern[str] = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        detail = error.args[0] if isinstance(error, re2.error) else error
        reason = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        raise InvalidArgument(
            f"the search is not a valid regular expression: {reason}",
            hint="use RE2 syntax, without look-around and back-references, or search plain text",
        ) from error
    return found
