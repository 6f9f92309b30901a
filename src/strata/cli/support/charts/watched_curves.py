"""The loss and the throughput of a running task, for the status line of `strata run`."""

import math
import time
from collections.abc import Sequence

from strata.cli.support.charts.terminal_chart import sparkline
from strata.cli.support.past_source import Remote
from strata.cli.support.rest_client import Api
from strata.errors import StrataError
from strata.timeline.curves.curve_answers import CurvePoints, Wanted

LOOK_S = 1.0
BARS = 16
NAMES = ("loss", "tokens/s", "samples/s")


def on_log_scale(values: Sequence[float | None]) -> list[float | None]:
    """Logarithms, which show late changes too; the values themselves if one is not above 0."""
    if any(each is not None and each <= 0 for each in values):
        return [*values]
    return [None if each is None else math.log(each) for each in values]


class WatchedCurves:
    """Asks for the curves at most once a second; what is not recorded is empty.

    An answer that fails changes nothing: the status line is no place for its error.
    """

    def __init__(self, api: Api, task: str) -> None:
        self.losses = ""
        self.throughput = ""
        self._remote = Remote(api)
        self._task = task
        self._next_s = 0.0

    def look(self) -> None:
        """Ask for the newest points, if the last time is long enough ago."""
        if time.monotonic() < self._next_s:
            return
        curves = {name: curve for name in NAMES if (curve := self._curve(name)) is not None}
        self._next_s = time.monotonic() + LOOK_S
        if "loss" in curves:
            self.losses = sparkline(on_log_scale(curves["loss"].mean[-BARS:]))
        for name in NAMES[1:]:
            newest = curves[name].mean[-1] if name in curves else None
            if newest is not None:
                self.throughput = f"{newest:,.0f} {name}"
                return

    def _curve(self, name: str) -> CurvePoints | None:
        """The whole curve in a few points; None if it is not recorded, or cannot be read now."""
        wanted = Wanted(names=[name], points=BARS)
        try:
            curves = self._remote.curves.points(self._task, wanted).curves
        except StrataError:
            return None
        return curves[0] if curves and curves[0].mean else None
