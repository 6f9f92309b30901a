"""A simulated agent: keeps the ordered workers running, and reports how their processes end."""

from typing import TYPE_CHECKING

from strata.errors import AlreadyExists
from strata.sdk.session.channel import error_of
from strata.sim.sim_coordinator import AGENT_SESSION
from strata.sim.sim_process import Process
from strata.sim.sim_session import stacks_of
from strata.sim.sim_worker import SimWorker
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation


class SimAgent(Process):
    """The agent of one simulated host."""

    def __init__(self, sim: "Simulation", host: str, slots: int, life: int) -> None:
        super().__init__(sim, host, f"agent-{host}")
        self.slots = slots
        self.life = life
        self.running: dict[str, SimWorker] = {}
        self.unreported: dict[tuple[str, str, int], pb.ProcessExited] = {}
        self._beating = False

    def connect(self) -> None:
        """Register, or reconnect as the same agent."""
        self.open(AGENT_SESSION)
        hello = pb.AgentHello(
            agent_id=self.name, hostname=self.host, slots=self.slots, nonce=f"{self.life}"
        )
        self.say(pb.AgentMessage(hello=hello))

    def heard(self, payload: bytes) -> None:
        """Act on an order."""
        order = pb.AgentOrder.FromString(payload)
        kind = order.WhichOneof("body")
        if kind == "duties":
            if not self.connected:
                self._attach()
            self._obey(order.duties)
        elif kind == "exit_stored":
            stored = order.exit_stored
            self.unreported.pop((stored.task_id, stored.worker_id, stored.start), None)
        elif kind == "collect_stacks":
            for name in order.collect_stacks.worker_ids:
                self.later(self.sim.world.about(0.2), self._stacks, order.collect_stacks, name)
        elif kind == "refused":
            self._refused(order.refused)

    def _attach(self) -> None:
        self.attached()
        for exited in self.unreported.values():
            self.say(pb.AgentMessage(exited=exited))
        if not self._beating:
            self._beating = True
            self._beat()

    def _refused(self, refused: pb.Refused) -> None:
        """Reopen the stream; later if the previous agent of the host is still registered."""
        self.drop()
        error = error_of(refused.code, "", refused.message, refused.hint)
        if isinstance(error, AlreadyExists):
            self.later(self.sim.world.about(5.0), self.connect)
        else:
            self.try_again()

    def _beat(self) -> None:
        if self.connected:
            self.say(pb.AgentMessage(beat=pb.AgentBeat()))
        self.later(self.sim.scenario.heartbeat_s, self._beat)

    def _obey(self, duties: pb.Duties) -> None:
        """Start missing workers and end those that are no longer ordered."""
        starts = {seat.worker_id: (job, seat.start) for job in duties.jobs for seat in job.seats}
        for name, worker in list(self.running.items()):
            if name not in starts or starts[name][1] > worker.start:
                self.later(self.sim.scenario.kill_s, self._end, worker)
        for name, (job, start) in starts.items():
            if not job.blocked:
                self._start(job, name, start)

    def _end(self, worker: SimWorker) -> None:
        worker.paused = False
        worker.exit(137, 9)

    def _start(self, job: pb.Job, name: str, start: int) -> None:
        old = self.running.get(name)
        if job.blocked or (old is not None and old.start >= start):
            return
        self.sim.started(job)
        worker = SimWorker(self.sim, self.host, name, job.task_id, start)
        self.running[name] = worker
        before = self.sim.workers.get(name)
        if before is None or not before.alive:
            self.sim.workers[name] = worker
        worker.later(self.sim.world.about(self.sim.scenario.start_s), worker.connect)

    def _stacks(self, asked: pb.CollectStacks, name: str) -> None:
        if self.connected:
            stacks = stacks_of(asked, name, self.running.get(name))
            self.say(pb.AgentMessage(stacks=stacks))

    def ended(self, worker: SimWorker, code: int, signal: int) -> None:
        """Report that a worker ended."""
        if self.running.get(worker.name) is worker:
            del self.running[worker.name]
        exited = pb.ProcessExited(
            task_id=worker.task,
            worker_id=worker.name,
            start=worker.start,
            code=code,
            signal=signal,
        )
        self.unreported[worker.task, worker.name, worker.start] = exited
        self._do(self._report, exited)

    def _report(self, exited: pb.ProcessExited) -> None:
        if self.connected:
            self.say(pb.AgentMessage(exited=exited))
