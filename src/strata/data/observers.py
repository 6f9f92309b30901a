"""Who in this process is told what datasets do: which files they fetch, and when they are opened.

A run adds an observer that records it (`strata.sdk.fetches`). Downloads and openings that ended
before there was an observer are kept, up to `MAX_EARLIER` of each, and told to the first one, with
how long ago they ended. Observers are called by whatever thread downloads or opens.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Literal, NamedTuple, Protocol, TypeAlias

MAX_EARLIER = 256
USER = re.compile(r"://[^/@]*@")

FetchPhase: TypeAlias = Literal["requested", "started", "progress", "completed"]
_numbers = count(1)


class Fetch(NamedTuple):
    """A download of a file: requested, started, under way or completed.

    `number` tells the downloads of a process apart. `batch` is empty where the file is fetched to
    open the dataset. `queued_s` is how long it waited before it started, for room in the cache or
    for another process that fetched the same file; in the latter case `shared` is True and nothing
    was downloaded here. `attempt` counts downloads of the file that did not succeed before, and
    this one. `ago_s` is how long ago a download ended that nobody observed.
    """

    number: int
    phase: FetchPhase
    dataset: str
    batch: str
    source: str
    size_bytes: int
    done_bytes: int = 0
    attempt: int = 1
    queued_s: float = 0.0
    took_s: float = 0.0
    error: str = ""
    shared: bool = False
    ago_s: float = 0.0


class Opening(NamedTuple):
    """A dataset is being opened, or was. `range_bytes` were read of files that were not fetched."""

    number: int
    completed: bool
    dataset: str
    source: str
    files: int = 0
    samples: int = 0
    range_bytes: int = 0
    took_s: float = 0.0
    error: str = ""
    ago_s: float = 0.0


class Observer(Protocol):
    """Is told of every download and every opening; must not raise."""

    def fetched(self, fetch: Fetch) -> None: ...

    def opened(self, opening: Opening) -> None: ...


class Observers:
    """The observers of a process."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()
        self._earlier: deque[tuple[float, Fetch | Opening]] = deque(maxlen=MAX_EARLIER)
        self._lock = Lock()

    def add(self, observer: Observer) -> None:
        """Tell an observer from now on; the first one also of what ended before."""
        with self._lock:
            earlier = [] if self._observers else [*self._earlier]
            self._earlier.clear()
            self._observers = (*self._observers, observer)
        now_s = time.monotonic()
        for ended_s, told in earlier:
            told = told._replace(ago_s=now_s - ended_s)
            observer.fetched(told) if isinstance(told, Fetch) else observer.opened(told)

    def remove(self, observer: Observer) -> None:
        """Tell an observer nothing more."""
        with self._lock:
            left = tuple(each for each in self._observers if each is not observer)
            self._observers = left

    def fetched(self, fetch: Fetch) -> None:
        """Tell of a download."""
        for observer in self._observers:
            observer.fetched(fetch)
        if not self._observers and fetch.phase == "completed":
            self._earlier.append((time.monotonic(), fetch))

    def opened(self, opening: Opening) -> None:
        """Tell of an opening."""
        for observer in self._observers:
            observer.opened(opening)
        if not self._observers and opening.completed:
            self._earlier.append((time.monotonic(), opening))

    @contextmanager
    def collecting(self) -> Iterator[list[Fetch]]:
        """The downloads that end meanwhile, in place of telling anybody of them.

        For a process that reads for another one, which is sent them and tells its observers.
        """
        # Without the lock: a process that was forked while another thread held it has it for ever.
        collector, before = _Collector(), self._observers
        self._observers = (collector,)
        try:
            yield collector.ended
        finally:
            self._observers = before


class _Collector:
    """Keeps the downloads that ended."""

    def __init__(self) -> None:
        self.ended: list[Fetch] = []

    def fetched(self, fetch: Fetch) -> None:
        if fetch.phase == "completed":
            self.ended.append(fetch)

    def opened(self, opening: Opening) -> None:
        """Openings are told by the process that asked for the dataset."""


OBSERVERS = Observers()
"""Those of this process."""


def next_number() -> int:
    """A number for a download or an opening."""
    return next(_numbers)


def without_credentials(place: str) -> str:
    """A path or URL without the user, password or query that a URL may carry."""
    if "://" not in place:
        return place
    return USER.sub("://", place).partition("?")[0]


class OpeningNotes:
    """What is found out about a dataset while it is opened."""

    def __init__(self) -> None:
        self.files = self.samples = self.range_bytes = 0


@contextmanager
def observed_opening(dataset: str, source: str) -> Iterator[OpeningNotes]:
    """Tells that a dataset is being opened, and how that ended."""
    opening = Opening(next_number(), False, dataset, without_credentials(source))
    begun_s = time.monotonic()
    OBSERVERS.opened(opening)
    notes, error = OpeningNotes(), ""
    try:
        yield notes
    except BaseException as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        OBSERVERS.opened(
            opening._replace(
                completed=True,
                files=notes.files,
                samples=notes.samples,
                range_bytes=notes.range_bytes,
                took_s=time.monotonic() - begun_s,
                error=error,
            )
        )
