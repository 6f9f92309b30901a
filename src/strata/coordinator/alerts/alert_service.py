"""Alerts of a running coordinator: feeds the rules once a second and records what changed.

The rules see every fact after it is stored, the losses that `loss_reader` found, and the free disk
space and step times in the last heartbeats. Their changes are submitted to the engine like any
other command, so the engine does nothing for alerts but record them. If a rule fails, that is
logged, and the others and the coordinator go on.
"""

import asyncio
import logging
import shutil
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from strata.config import Settings
from strata.coordinator.alerts.channels import channels_of
from strata.coordinator.alerts.delivery import Delivery
from strata.coordinator.alerts.goodput_reader import Ask, GoodputReader
from strata.coordinator.alerts.loss_reader import LossReader
from strata.coordinator.background import background
from strata.coordinator.engine.engine import Engine
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.alerts.alert_record import Change, RecordAlerts
from strata.core.alerts.alert_settings import RULES, AlertThresholds, unknown_rules
from strata.core.alerts.alert_watch import FOLLOWED, AlertWatch
from strata.core.alerts.disk_rules import COORDINATOR, MEASURE_S
from strata.core.alerts.failure_rules import DROPPED
from strata.core.alerts.loss_rules import NOT_FINITE, PLATEAU, SPIKE
from strata.core.events import Event
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import AlertSeverity, Cluster
from strata.errors import SettingError, StrataError
from strata.storage.mounts import shared_source
from strata.store.event_store import Batch

log = logging.getLogger(__name__)

LOOK_S = 1.0
SAMPLES_AT_ONCE = 1_000
MAX_FACTS = 262_144
MAX_CHANGES = 10_000
SEVERITIES: tuple[AlertSeverity, ...] = ("info", "warning", "error")


class Alerts:
    """The alert rules of one coordinator, and the delivery of their messages."""

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        settings: Settings,
        look_s: float = LOOK_S,
    ) -> None:
        self._engine = engine
        self._heartbeats = heartbeats
        self._folder = Path(settings.data_dir)
        self._look_s = look_s
        self.reader = LossReader()
        self.delivery = Delivery(engine, channels_of(settings))
        least = SEVERITIES.index(settings.alert_notify_from)
        self._channels = dict.fromkeys(SEVERITIES[least:], self.delivery.names)
        kernel = engine.kernel
        self.watch = AlertWatch(thresholds_of(settings), kernel.state, kernel.clock())
        self._facts: deque[Event] = deque(maxlen=MAX_FACTS)
        self._unrecorded: list[Change] = []
        self._measured_ns = 0
        engine.follow(self._facts.extend, *FOLLOWED)

    def read_losses(self, batch: Batch) -> None:
        """Look for losses in a batch of events that was stored, unless no rule needs them."""
        if any(map(self.watch.thresholds.on, (NOT_FINITE, SPIKE, PLATEAU, DROPPED))):
            self.reader.offer(batch, self._engine.kernel.state)

    @asynccontextmanager
    async def working(self, ask: Ask) -> AsyncIterator[None]:
        """Evaluate the rules and send messages while the context is open; `ask` reads the log."""
        self.reader.start()
        goodput = GoodputReader(self._engine, self.watch, ask).working()
        try:
            async with self.delivery.working(), background(self._run(), "strata-alerts"), goodput:
                yield
        finally:
            self.reader.close()

    async def _run(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self.look()
                failed = False
            except StrataError as error:
                log.warning("alerts could not be recorded, trying again: %s", error)
            except Exception:
                log.log(logging.DEBUG if failed else logging.ERROR, "a rule failed", exc_info=True)
                failed = True

    async def look(self) -> None:
        """Evaluate the rules and record what changed."""
        self._take_facts()
        await self._take_losses()
        free_bytes, source = await asyncio.to_thread(_disk, self._folder)
        async with self._engine.settled() as state:
            now = self._engine.kernel.clock()
            if now.mono_ns - self._measured_ns >= MEASURE_S * SECOND_NS:
                self._measured_ns = now.mono_ns
                self._measure_disks(state, free_bytes, source, now.mono_ns)
                self._compare_steps(state, now.mono_ns)
            self._unrecorded += self.watch.changes(state, now)
        del self._unrecorded[:-MAX_CHANGES]
        if self._unrecorded:
            changes = tuple(self._unrecorded)
            await self._engine.submit(RecordAlerts(changes=changes, channels=self._channels))
            del self._unrecorded[: len(changes)]
        self.delivery.wake()

    def _take_facts(self) -> None:
        while self._facts:
            self.watch.follow(self._facts.popleft())

    async def _take_losses(self) -> None:
        found = self.reader.take()
        now = self._engine.kernel.clock()
        for number, sample in enumerate(found.samples, 1):
            self.watch.sample(sample, now.mono_ns)
            if number % SAMPLES_AT_ONCE == 0:
                await asyncio.sleep(0)
        for dropped in found.dropped:
            self.watch.failures.dropped(
                dropped.task, dropped.worker, dropped.count, dropped.ref, now
            )

    def _compare_steps(self, state: Cluster, now_ns: int) -> None:
        beats = {
            name: heartbeat.beat
            for name, heartbeat in self._heartbeats.workers.items()
            if heartbeat.beat is not None
        }
        self.watch.compare(state, beats, now_ns)

    def _measure_disks(
        self, state: Cluster, free_bytes: int | None, source: str, now_ns: int
    ) -> None:
        disks = self.watch.disks
        for name, heartbeat in self._heartbeats.workers.items():
            worker = state.workers.get(name)
            if worker is not None and worker.alive and heartbeat.resources is not None:
                host = worker.hostname or worker.address or name
                used = heartbeat.resources
                disks.measured(host, used.disk_free_bytes, now_ns, source=used.disk_source)
        if free_bytes is not None:
            # Last, so that the alert about a disk of both names the host.
            here = frozenset({socket.gethostname()})
            disks.measured(COORDINATOR, free_bytes, now_ns, same_machine=here, source=source)


def thresholds_of(settings: Settings) -> AlertThresholds:
    """The thresholds that are set; raises `SettingError` for a rule that does not exist."""
    off = frozenset(name.strip() for name in settings.alerts_off.split(",") if name.strip())
    if unknown := unknown_rules(sorted(off)):
        raise SettingError(
            f"alerts_off names unknown rules: {', '.join(unknown)}",
            hint=f"the rules are {', '.join(RULES)}; `all` means all of them",
        )
    names = set(AlertThresholds.__struct_fields__) - {"off"}
    return AlertThresholds(off=off, **{name: getattr(settings, f"alert_{name}") for name in names})


def _disk(folder: Path) -> tuple[int | None, str]:
    """The free space of a folder, and its network file system."""
    try:
        return shutil.disk_usage(folder).free, shared_source(folder)
    except OSError:
        return None, ""
