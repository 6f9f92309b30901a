"""The lines of workers as `strata run` prints them: a traceback once, then one line per repetition.

A script that fails prints the same traceback in each worker and after each restart. The lines of a
traceback are held until it is complete, because workers print at the same time. Tracebacks are
equal if they differ only in addresses of objects and in the worker's id. `strata logs` has all
lines.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from strata.coordinator.logs.log_entries import LogEntry

HEAD = "Traceback (most recent call last):"
CHAINS = (
    "",
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
"""Lines between the tracebacks of a chain."""

MAX_KNOWN = 64
MAX_HELD = 400
"""Lines of one traceback that are held; a longer one is printed as it comes."""

_ADDRESS = re.compile(r"0x[0-9a-f]+")

Source = tuple[str, str]


class Printed(NamedTuple):
    """What to print: a line, or, with `again`, the exception whose traceback was printed before."""

    worker: str
    text: str
    again: bool = False


class WorkerLines:
    """Sorts the lines of workers; `exceptions` has the last line of each different traceback."""

    def __init__(self) -> None:
        self.exceptions: list[str] = []
        self._held: dict[Source, list[str]] = {}
        self._repeating: set[Source] = set()
        self._known: set[str] = set()

    def taken(self, entries: Iterable[LogEntry]) -> list[Printed]:
        """What to print after these lines, in order of arrival."""
        found: list[Printed] = []
        for entry in entries:
            found += self._take((entry.worker_id, entry.stream), entry.message)
        return found

    def rest(self) -> list[Printed]:
        """Lines of tracebacks that were never completed."""
        found = [Printed(worker, line) for (worker, _), held in self._held.items() for line in held]
        self._held.clear()
        return found

    def _take(self, source: Source, line: str) -> list[Printed]:
        held = self._held.get(source)
        if line == HEAD:
            before = self._held.pop(source, [])
            self._held[source] = [line]
            return [Printed(source[0], each) for each in before]
        if held is None:
            if source in self._repeating and (line in CHAINS or line[:1].isspace()):
                return []  # of a traceback that was printed before
            self._repeating.discard(source)
            return [Printed(source[0], line)]
        held.append(line)
        if line[:1].isspace() and len(held) < MAX_HELD:
            return []
        return self._completed(source, self._held.pop(source))

    def _completed(self, source: Source, block: list[str]) -> list[Printed]:
        """A traceback, or its exception alone if it was printed before."""
        worker = source[0]
        key = _ADDRESS.sub("0x", "\n".join(block).replace(worker or HEAD, ""))
        if key in self._known:
            self._repeating.add(source)
            return [Printed(worker, block[-1], again=True)]
        self._repeating.discard(source)
        if len(self._known) < MAX_KNOWN:
            self._known.add(key)
            self.exceptions.append(block[-1])
        return [Printed(worker, line) for line in block]
