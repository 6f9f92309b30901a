"""Measures the goodput of the tasks that train, for the alert rule on it.

The ledger reads all events of a task, in a thread of the timeline's queries. So a measurement waits
for `SHARE` times as long as the one before took, and for at least a twentieth of the window.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from strata.coordinator.background import background
from strata.coordinator.engine.engine import Engine
from strata.core.alerts.alert_watch import AlertWatch
from strata.core.alerts.goodput_rules import LOW, RecentGoodput
from strata.errors import StrataError
from strata.timeline.goodput.recent_goodput import recent_goodput
from strata.timeline.queries import TimelineQueries

log = logging.getLogger(__name__)

SHARE = 50
LEAST_S, MOST_S = 0.5, 60.0
TRAINING = ("running", "recovering")

Question: TypeAlias = Callable[[TimelineQueries], RecentGoodput | None]
Ask: TypeAlias = Callable[[Question], Awaitable[RecentGoodput | None]]


class GoodputReader:
    """Measures in the background while the context of `working` is open."""

    def __init__(self, engine: Engine, watch: AlertWatch, ask: Ask) -> None:
        self._engine, self._watch, self._ask = engine, watch, ask
        self._window_s = watch.thresholds.goodput_window_s

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Measure while the context is open, unless the rule is off."""
        if not self._watch.thresholds.on(LOW):
            yield
            return
        async with background(self._run(), "strata-goodput"):
            yield

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = least_s = min(max(self._window_s / 20, LEAST_S), MOST_S)
        while True:
            await asyncio.sleep(wait_s)
            began_s = loop.time()
            for task in [*self._engine.kernel.state.tasks.values()]:
                if task.state in TRAINING:
                    await self._measure(task.id)
            wait_s = max(least_s, SHARE * (loop.time() - began_s))

    async def _measure(self, task: str) -> None:
        try:
            found = await self._ask(
                lambda queries: recent_goodput(queries.timeline, task, self._window_s)
            )
        except StrataError as error:
            log.debug("the goodput of %s was not measured: %s", task, error)
            return
        except Exception:
            log.warning("the goodput of %s was not measured", task, exc_info=True)
            return
        if found is not None:
            self._watch.goodput.measured(found, self._engine.kernel.clock().mono_ns)
