"""A simulated agent: keeps the workers running that it was told to, and reports how they end."""

from typing import TYPE_CHECKING

from strata.core.agents import Agent, RegisterAgent, ReportExit
from strata.core.cluster import Outcome
from strata.core.standing import Duty
from strata.errors import AlreadyExists
from strata.sim.process import Process
from strata.sim.worker import SimWorker

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation


class SimAgent(Process):
    """One host."""

    def __init__(self, sim: "Simulation", host: str, slots: int, life: int) -> None:
        super().__init__(sim, host, f"agent-{host}")
        self.slots = slots
        self.life = life
        self.running: dict[str, SimWorker] = {}
        self.unreported: list[ReportExit] = []
        self._beating = False

    def connect(self) -> None:
        """Registers, or is recognised as the one it is."""
        self.call(
            RegisterAgent(
                agent=self.name, hostname=self.host, slots=self.slots, nonce=f"{self.life}"
            ),
            self._registered,
        )

    def _registered(self, outcome: Outcome) -> None:
        if isinstance(outcome.refusal, AlreadyExists):
            self.later(self.sim.world.about(5.0), self.connect)
        elif isinstance(outcome.answer, Agent):
            self.attached(outcome.answer.incarnation)
            for report in self.unreported:
                self._report(report)
            if not self._beating:
                self._beating = True
                self._beat()

    def _beat(self) -> None:
        sim = self.sim
        if self.connected:
            sim.network.send(
                self.host, True, sim.coordinator.beat, self, self.session, self.incarnation, None
            )
        self.later(sim.scenario.heartbeat_s, self._beat)

    def heard(self, message: object) -> None:
        """Starts what is missing and ends what is not wanted any more."""
        assert isinstance(message, list)
        wanted: dict[str, Duty] = {duty.worker: duty for duty in message}
        for name, worker in list(self.running.items()):
            duty = wanted.get(name)
            if duty is None or duty.start > worker.start:
                self.later(self.sim.scenario.kill_s, self._end, worker)
        for duty in wanted.values():
            self._start(duty)

    def _end(self, worker: SimWorker) -> None:
        worker.paused = False
        worker.exit(137, 9)

    def _start(self, duty: Duty) -> None:
        old = self.running.get(duty.worker)
        if old is not None and old.start >= duty.start:
            return
        worker = SimWorker(self.sim, self.host, duty.worker, duty.task, duty.start)
        self.running[duty.worker] = worker
        before = self.sim.workers.get(duty.worker)
        if before is None or not before.alive:
            self.sim.workers[duty.worker] = worker
        worker.later(self.sim.world.about(self.sim.scenario.start_s), worker.connect)

    def ended(self, worker: SimWorker, code: int, signal: int) -> None:
        """One of its workers ended."""
        if self.running.get(worker.name) is worker:
            del self.running[worker.name]
        report = ReportExit(
            agent=self.name,
            incarnation=self.incarnation,
            task=worker.task,
            worker=worker.name,
            start=worker.start,
            code=code,
            signal=signal,
        )
        self.unreported.append(report)
        self._do(self._report, report)

    def _report(self, report: ReportExit) -> None:
        if self.connected:
            self.call(report, lambda outcome: self._reported(report))

    def _reported(self, report: ReportExit) -> None:
        if report in self.unreported:
            self.unreported.remove(report)
