"""Reads the live stream and what one task or worker logged, in threads, for the terminal view.

The stream is the one that the dashboard reads. When it ends, it is opened again with the mark of
the last patch, until that succeeds or is refused permanently. Both threads are daemons: nothing
waits for them when the view is closed.
"""

import http.client
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from strata.cli.support.event_stream import FIRST_WAIT_S, LONGEST_WAIT_S, PASSING, SILENCE_S, parse
from strata.cli.support.past_source import Remote
from strata.cli.support.rest_client import Api
from strata.cli.support.top.live_mirror import Patch
from strata.coordinator.logs.log_entries import LogEntry
from strata.errors import UNDECODABLE, NotFound, StrataError
from strata.timeline.answers import EventAnswer
from strata.timeline.curves.curve_answers import Wanted

LOOK_S = 1.0
POINTS = 60
LINES = 50


class LiveFeed:
    """The stream of patches. `on_link` gets why there is no connection, or nothing; `on_refused` an
    error that a retry would get too."""

    def __init__(
        self,
        api: Api,
        on_patch: Callable[[Patch], object],
        on_link: Callable[[str], object],
        on_refused: Callable[[StrataError], object],
    ) -> None:
        self._api = api
        self._on_patch = on_patch
        self._on_link = on_link
        self._on_refused = on_refused
        self._mark = ""
        threading.Thread(target=self._run, name="strata-top-live", daemon=True).start()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                response = self._api.open("/api/live", {}, self._mark, SILENCE_S)
            except PASSING as error:
                self._on_link(str(error))
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
                continue
            except StrataError as error:
                self._on_refused(error)
                return
            wait_s = FIRST_WAIT_S
            self._on_link("")
            self._on_link(self._read(response))
            time.sleep(FIRST_WAIT_S)

    def _read(self, response: http.client.HTTPResponse) -> str:
        """Hand on patches until the connection ends; returns why it ended."""
        try:
            with response:
                for event in parse(response):
                    self._mark = event.id or self._mark
                    if event.data:
                        self._on_patch(msgspec.json.decode(event.data, type=Patch))
        except (OSError, http.client.HTTPException) as error:
            return f"the connection broke: {error}"
        except UNDECODABLE as error:
            self._mark = ""
            return f"the stream cannot be read: {error}"
        return "the coordinator ended the connection"


class Subject(NamedTuple):
    """What is looked at: a task, a worker of it, and whether its facts and log are shown."""

    task: str
    worker: str = ""
    in_detail: bool = False


class Details(Struct, frozen=True):
    """What was recorded about a subject; None where the coordinator did not answer.

    `losses` are means over buckets of steps; `loss` is the last one, at `step`.
    """

    subject: Subject
    losses: list[float | None] | None = None
    loss: float | None = None
    step: int | None = None
    events: list[EventAnswer] | None = None
    lines: list[LogEntry] | None = None
    errors: list[str] = field(default_factory=list)


class DetailReader:
    """Reads the details of the wanted subject once a second, and at once when it changes."""

    def __init__(self, api: Api, on_details: Callable[[Details], object]) -> None:
        self._api = api
        self._remote = Remote(api)
        self._on_details = on_details
        self._wanted = Subject("")
        self._changed = threading.Event()
        threading.Thread(target=self._run, name="strata-top-details", daemon=True).start()

    def want(self, subject: Subject) -> None:
        """Look at another subject."""
        if subject != self._wanted:
            self._wanted = subject
            self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait(LOOK_S)
            self._changed.clear()
            subject = self._wanted
            if subject.task:
                self._on_details(self._read(subject))

    def _read(self, subject: Subject) -> Details:
        details = Details(subject=subject)
        reads = [self._losses, *([self._events, self._lines] if subject.in_detail else [])]
        for read in reads:
            try:
                details = read(details)
            except StrataError as error:
                errors = [*details.errors, str(error)]
                details = msgspec.structs.replace(details, errors=errors)
        return details

    def _losses(self, details: Details) -> Details:
        task, worker, _ = details.subject
        wanted = Wanted(names=["loss"], points=POINTS, worker=worker)
        try:
            curves = self._remote.curves.points(task, wanted).curves
        except NotFound:  # no loss was logged
            curves = []
        if not curves or not curves[0].mean:
            return msgspec.structs.replace(details, losses=[])
        found = curves[0]
        return msgspec.structs.replace(
            details, losses=found.mean, loss=found.mean[-1], step=found.step[-1]
        )

    def _events(self, details: Details) -> Details:
        task, worker, _ = details.subject
        subject = f"worker:{worker}" if worker else ""
        answer = self._api.get(
            "/api/timeline/events",
            task="" if worker else task,
            subject=subject,
            limit=LINES,
            newest="true",
        )
        events = self._api.decode(answer.body, list[EventAnswer])
        return msgspec.structs.replace(details, events=events)

    def _lines(self, details: Details) -> Details:
        task, worker, _ = details.subject
        of = {"worker_id": worker} if worker else {"task_id": task}
        answer = self._api.get("/api/logs", limit=LINES, **of)
        lines = self._api.decode(answer.body, list[LogEntry])
        return msgspec.structs.replace(details, lines=lines)
