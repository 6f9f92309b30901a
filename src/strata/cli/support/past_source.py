"""The run that a verb about the past queries: in a folder, or over a coordinator's REST API.

Both have the same methods and answers, so a verb does not know which one it uses.
"""

import re
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from strata.cli.support.rest_client import Api, Param, reach
from strata.config import load_process
from strata.errors import InvalidArgument
from strata.timeline.answers import (
    DensityAnswer,
    DiffAnswer,
    EventAnswer,
    EventDetail,
    LanesAnswer,
    MomentAnswer,
    QuestionAnswer,
    SeekAnswer,
    SpanAnswer,
    StoryAnswer,
    WhyAnswer,
)
from strata.timeline.curves.curve_answers import CurvesAnswer, PointsAnswer
from strata.timeline.curves.curve_answers import Wanted as WantedPoints
from strata.timeline.goodput.goodput_answers import GoodputAnswer, RunsGoodput
from strata.timeline.goodput.prices import Prices
from strata.timeline.stack_answers import StacksAnswer

if TYPE_CHECKING:
    from strata.timeline.queries import TimelineQueries
    from strata.timeline.read.run_timeline import Timeline

Past: TypeAlias = "TimelineQueries | Remote"
"""A run to query: in a folder that is opened here, or over a coordinator's REST API."""

Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="Read runs from this folder or s3://bucket/prefix instead of from a coordinator.",
        show_default=False,
    ),
]
RunName = Annotated[
    str, typer.Option("--run", help="The run, by its name or its task.", show_default=False)
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="MOMENT",
        help="Start of the window; default: the run's start.",
        show_default=False,
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="MOMENT",
        help="End of the window; default: the run's end.",
        show_default=False,
    ),
]

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
RELATIVE = re.compile(r"^(?:start\+|end-)(\d+(?:\.\d+)?)(ms|s|min|m|h|d)$")
CLOCK = re.compile(r"^\d{1,2}:\d{2}")
CLOSE = timedelta(seconds=1)
DAYS_NAMED = 5
MOMENT_HINT = "use 14:03:07, 2026-11-16T14:03:07, end, end-5m, start+2h, @120, step:40 or Unix ms"

Wanted = TypeVar("Wanted")


class Remote:
    """Queries over the REST API: the coordinator's own run, or one that it has archived."""

    def __init__(self, api: Api, run: str = "") -> None:
        self.api = api
        self.run = run
        self.curves = RemoteCurves(self)

    def get(
        self, path: str, wanted: type[Wanted], **params: float | str | list[str] | None
    ) -> Wanted:
        """The answer of an endpoint of the timeline."""
        given: dict[str, Param] = {
            name: repr(value) if isinstance(value, float) else value
            for name, value in {**params, "run": self.run}.items()
        }
        return self.api.decode(self.api.get(f"/api/timeline/{path}", **given).body, wanted)

    def span(self) -> SpanAnswer:
        return self.get("span", SpanAnswer)

    def density(
        self, from_ms: float | None, to_ms: float | None, buckets: int = 200, task: str = ""
    ) -> DensityAnswer:
        return self.get(
            "density", DensityAnswer, from_ms=from_ms, to_ms=to_ms, buckets=buckets, task=task
        )

    def lanes(
        self,
        from_ms: float | None,
        to_ms: float | None,
        task: str = "",
        limit: int = 100,
        cursor: str = "",
    ) -> LanesAnswer:
        window = {"from_ms": from_ms, "to_ms": to_ms}
        return self.get("lanes", LanesAnswer, **window, task=task, limit=limit, cursor=cursor)

    def goodput(self, task: str, prices: Prices) -> GoodputAnswer:
        return self.get("goodput", GoodputAnswer, task=task, price=prices.text)

    def runs_goodput(self, prices: Prices) -> RunsGoodput:
        answer = self.api.get("/api/timeline/goodput/runs", price=prices.text)
        return self.api.decode(answer.body, RunsGoodput)

    def events(
        self,
        from_ms: float | None = None,
        to_ms: float | None = None,
        node: str = "",
        kind: str = "",
        task: str = "",
        subject: str = "",
        limit: int = 100,
        cursor: str = "",
    ) -> tuple[list[EventAnswer], str]:
        answer = self.api.get(
            "/api/timeline/events",
            from_ms=None if from_ms is None else repr(from_ms),
            to_ms=None if to_ms is None else repr(to_ms),
            node=node,
            kind=kind,
            task=task,
            subject=subject,
            limit=limit,
            cursor=cursor,
            run=self.run,
        )
        return self.api.decode(answer.body, list[EventAnswer]), answer.cursor

    def event(self, ref: str) -> EventDetail:
        return self.get(f"event/{ref}", EventDetail)

    def at(
        self,
        time_ms: float | None = None,
        position: int | None = None,
        step: int | None = None,
        task: str = "",
    ) -> MomentAnswer:
        return self.get(
            "at", MomentAnswer, time_ms=time_ms, position=position, step=step, task=task
        )

    def story(self, subject: str, limit: int = 100, cursor: str = "") -> StoryAnswer:
        return self.get("story", StoryAnswer, subject=subject, limit=limit, cursor=cursor)

    def seek(
        self,
        predicate: str,
        from_ms: float | None,
        direction: str = "next",
        position: int | None = None,
    ) -> SeekAnswer:
        return self.get(
            "seek",
            SeekAnswer,
            predicate=predicate,
            from_ms=from_ms,
            direction=direction,
            position=position,
        )

    def diff(self, a_ms: float, b_ms: float) -> DiffAnswer:
        return self.get("diff", DiffAnswer, a=a_ms, b=b_ms)

    def why(
        self, question: str = "", ref: str = "", params: dict[str, str] | None = None
    ) -> WhyAnswer:
        return self.get("why", WhyAnswer, question=question, ref=ref, **(params or {}))

    def stacks(self, task: str) -> StacksAnswer | None:
        body = self.api.get(f"/api/tasks/{task}/stacks", run=self.run).body
        return None if body == b"null" else self.api.decode(body, StacksAnswer)

    def questions(self) -> list[QuestionAnswer]:
        return self.get("questions", list[QuestionAnswer])


class RemoteCurves:
    """Curves over the REST API."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def curves(self, task: str) -> CurvesAnswer:
        return self._remote.get("curves", CurvesAnswer, task=task)

    def points(self, task: str, wanted: WantedPoints) -> PointsAnswer:
        window = {"from": wanted.low, "to": wanted.high}
        return self._remote.get(
            "curves/points",
            PointsAnswer,
            task=task,
            name=wanted.names,
            x=wanted.axis,
            points=wanted.points,
            worker=wanted.worker,
            **window,
        )


def past_of(data: str, run: str, url: str | None) -> Past:
    """The run that the options name."""
    if not data:
        return Remote(reach(url), run)
    from strata.timeline.queries import TimelineQueries

    return TimelineQueries(opened(data, run))


def opened(data: str, run: str) -> "Timeline":
    """Open a run in a folder or an object storage."""
    # Imported here: Arrow is slow to import, and REST queries do not need it.
    from strata.timeline.archive.run_archive import open_anywhere

    return open_anywhere(data, run, load_process({}))


class Moment:
    """A moment as typed on the command line."""

    def __init__(self, text: str) -> None:
        self.time_ms: float | None = None
        self.position: int | None = None
        self.step: int | None = None
        self._after_start_ms: float | None = None
        self._before_end_ms: float | None = None
        self._clock: clock_time | None = None
        self._parse(text.strip())

    def _parse(self, text: str) -> None:
        relative = RELATIVE.match(text)
        kind, _, number = text.partition(":")
        if relative is not None or text in ("start", "end"):
            amount, unit = relative.groups() if relative else ("0", "ms")
            away_ms = float(amount) * UNITS_MS[unit]
            if text.startswith("start"):
                self._after_start_ms = away_ms
            else:
                self._before_end_ms = away_ms
        elif text.startswith("@") and text[1:].isdecimal():
            self.position = int(text[1:])
        elif kind in ("step", "p") and number.isdecimal():
            self.step, self.position = (
                (int(number), None) if kind == "step" else (None, int(number))
            )
        elif text.replace(".", "", 1).isdecimal():
            self.time_ms = float(text)
        else:
            self._parse_clock(text)

    def _parse_clock(self, text: str) -> None:
        """A time of day, or a date with a time."""
        try:
            if CLOCK.match(text):
                self._clock = clock_time.fromisoformat(text if text[1] != ":" else f"0{text}")
            else:
                self.time_ms = datetime.fromisoformat(text).timestamp() * 1000
        except ValueError as error:
            raise InvalidArgument(f"{text!r} is not a valid moment", hint=MOMENT_HINT) from error

    def within(self, span: SpanAnswer) -> "Moment":
        """Resolve a relative time or a time of day within a run."""
        if self._after_start_ms is not None:
            self.time_ms = span.from_ms + self._after_start_ms
        if self._before_end_ms is not None:
            self.time_ms = span.to_ms - self._before_end_ms
        if self._clock is not None:
            self.time_ms = _on_its_day(self._clock, span)
        return self


def _on_its_day(clock: clock_time, span: SpanAnswer) -> float:
    """A time of day on the day of the run; if it lasted several days, on the day that fits."""
    first, last = (datetime.fromtimestamp(at / 1000) for at in (span.from_ms, span.to_ms))
    days = [
        first.date() + timedelta(days=day) for day in range((last.date() - first.date()).days + 1)
    ]
    moments = [datetime.combine(day, clock) for day in days]
    if len(moments) > 1:
        moments = [each for each in moments if first - CLOSE <= each <= last + CLOSE]
    if len(moments) == 1:
        return moments[0].timestamp() * 1000
    if not moments:
        raise InvalidArgument(
            f"{clock} is outside the run, which lasted from {first:%Y-%m-%d %H:%M:%S} to "
            f"{last:%Y-%m-%d %H:%M:%S}",
            hint="give the date as well",
        )
    named = [f"{each:%Y-%m-%dT%H:%M:%S}" for each in moments[:DAYS_NAMED]]
    more = f" and {len(moments) - DAYS_NAMED} more" if len(moments) > DAYS_NAMED else ""
    raise InvalidArgument(
        f"{clock} occurs on {len(moments)} days of this run",
        hint=f"use {', '.join(named)}{more}",
    )


def is_moment(text: str) -> bool:
    """Whether a text is a moment of a run."""
    try:
        Moment(text)
    except InvalidArgument:
        return False
    return True


def time_in(past: Past, text: str, task: str = "") -> float:
    """A typed moment as Unix milliseconds."""
    moment = Moment(text).within(past.span())
    if moment.time_ms is None:
        return past.at(None, moment.position, moment.step, task).as_of.time_ms
    return moment.time_ms
