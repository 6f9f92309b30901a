"""The coordinator in the simulation: the real one, on a virtual event loop, able to crash.

Engine, sessions, calls and the sealing of checkpoints are those of the server, composed in the same
way. The loop with its clock and threads, the streams, the log's disk and the checkpoint storage are
virtual. The vault is a real folder, whose files can be damaged.

The coordinator can crash before its facts are stored, after they are stored but before any answer
is sent, or at any other moment. What was not stored is lost; what was answered is not. It may also
be stopped gracefully. Either way another one starts later from the disk. An engine that ends by
itself, or a handler that raises an unexpected error, ends the run.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from google.protobuf.message import Message

from strata.config import Settings
from strata.coordinator.checkpoint_files import Sealing
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.engine.waiters import BarrierWaiters
from strata.coordinator.logs.log_entries import LogLine as LogLine
from strata.coordinator.logs.log_store import LogStore
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.sessions.agent_sessions import AgentSessions
from strata.coordinator.sessions.intake import Intakes, LineIntake
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.coordinator.sessions.standing_messages import PeerTokens, secret_in
from strata.coordinator.sessions.task_environments import Vault
from strata.coordinator.sessions.unary_calls import SERVICE, UnaryCalls, status_of
from strata.coordinator.sessions.worker_sessions import WorkerSessions
from strata.core.events import Command, Event
from strata.core.record.event_codec import CODEC
from strata.core.rule_settings import Timeouts
from strata.core.state import Cluster
from strata.errors import StrataError, Unavailable
from strata.sim.coordinator_checks import Broken, GuaranteeChecker, Sign
from strata.sim.sim_disk import DiskRefused, PowerLost, SimDisk
from strata.sim.sim_models import SimStorages
from strata.sim.virtual_loop import VirtualLoop
from strata.sim.virtual_streams import Line, Reply, VirtualStream, answer
from strata.sim.virtual_time import Network, World
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.v1 import coordinator_pb2 as pb

SNAPSHOT_EVERY = 500
DISK_S = (0.0002, 0.001)
SLOW_S = (0.05, 5.0)
SESSION, AGENT_SESSION = f"/{SERVICE}/Session", f"/{SERVICE}/AgentSession"


class SimLogs(LogStore):
    """A log of lines that discards everything: lines are not facts and are not read here."""

    def __init__(self) -> None:
        """Open no file and start no thread."""

    def append(self, line: LogLine) -> None:
        """Take a line."""

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Take lines."""


class Life:
    """One process of the coordinator, from its start to its end."""

    def __init__(self, owner: "SimCoordinator", kernel: Kernel) -> None:
        self.kernel = kernel
        # The stubs call every method of a loop abstract; those for sockets are never called here.
        self.loop = VirtualLoop(owner.world, owner.work_s, owner.crashed)  # type: ignore[abstract]
        self.engine = engine = Engine(kernel)
        self.server = GrpcServer(status_of=status_of)
        settings, folder = owner.settings, owner.folder
        self.vault = vault = Vault(owner.vault)
        vault.sweep(kernel.state)
        heartbeats = Heartbeats()
        barriers = BarrierWaiters(engine)
        metrics = Metrics(engine, heartbeats)
        lines, intakes = LineIntake(SimLogs()), Intakes(kernel.store)
        tokens = PeerTokens(secret_in(folder / "peers.secret"))
        self.sessions = WorkerSessions(
            engine, heartbeats, barriers, metrics, lines, intakes, tokens
        )
        backlog = self.sessions.backlog
        self.agents = AgentSessions(
            engine, heartbeats, lines, intakes, vault, metrics, settings, backlog
        )
        self.sealing = Sealing(engine, heartbeats, owner.storages, settings.checkpoint_timeout_s)
        calls = UnaryCalls(
            engine, heartbeats, barriers, metrics, settings.heartbeat_interval_s, owner.storages
        )
        calls.serve(self.server, self.sessions, self.agents)
        self.lines: dict[Line, VirtualStream] = {}
        self.calls: dict[Callable[[Reply], None], str] = {}
        self.stopping = False

    def start(self, on_end: Callable[[Exception], None]) -> None:
        """Start the engine and the sealing of checkpoints."""
        self.engine.start()
        self.sealing.start()
        self.loop.create_task(self._watch(on_end))

    async def _watch(self, on_end: Callable[[Exception], None]) -> None:
        try:
            await self.engine.ended()
        except Exception as error:
            on_end(error)

    async def stop(self, then: Callable[[], None]) -> None:
        """Stop gracefully, as the server does."""
        self.sessions.end()
        self.agents.end()
        await self.sealing.stop()
        await self.engine.stop()
        then()


class SimCoordinator:
    """Starts, crashes and restarts the coordinator; carries messages to and from it."""

    def __init__(self, world: World, network: Network, timeouts: Timeouts) -> None:
        self.world = world
        self.network = network
        self.timeouts = timeouts
        self.settings = Settings()
        self.disk = SimDisk(CODEC)
        self.storages = SimStorages()
        self.promises = GuaranteeChecker(timeouts)
        self.folder = Path(tempfile.mkdtemp(prefix="strata-sim-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.life: Life | None = None
        self.slow = False
        self.crashes = 0
        self.turns = 0
        self.on_turn: list[Callable[[Cluster, list[Event]], None]] = []
        self._seen = 0
        self._kept = 0

    @property
    def vault(self) -> Path:
        """The folder of the vault."""
        return self.folder / "vault"

    @property
    def kernel(self) -> Kernel | None:
        """The kernel, while there is a coordinator."""
        return self.life.kernel if self.life is not None else None

    @property
    def settled(self) -> bool:
        """Whether there is a coordinator, and all that it has decided is on disk and published."""
        kernel = self.kernel
        return kernel is not None and kernel.state.position == self.disk.position == self._seen

    def work_s(self) -> float:
        """How long a thread's work takes: usually short, sometimes long."""
        dice = self.world.random
        if self.slow or dice.random() < 0.003:
            return dice.uniform(*SLOW_S)
        return dice.uniform(*DISK_S)

    def start(self) -> None:
        """Start, or restart, from the disk."""
        if not self.disk.on_stored:
            self.disk.on_stored.append(self._stored)
        self.disk.power_on()
        try:
            kernel = Kernel(self.disk, self.world.clock, self.timeouts, SNAPSHOT_EVERY)
            kernel.start("sim", "sim")
        except (DiskRefused, PowerLost):
            self.world.after(1.0, self.start)
            return
        self.life = life = Life(self, kernel)
        self._publish(kernel, list(self.disk.read(self._seen)))
        life.engine.follow(partial(self._follow, kernel))
        life.loop.enter(life.start, self._ended)

    def crash(self) -> None:
        """Lose everything that is not on disk; every connection breaks."""
        if self.life is None:
            return
        self.crashes += 1
        self._gone()

    def crashed(self) -> bool:
        """Whether the machine has lost power, and the coordinator with it."""
        if not self.disk.powered:
            self.crash()
        return not self.disk.powered

    def stop(self) -> None:
        """Stop gracefully and start again later."""
        life = self.life
        if life is not None and not life.stopping:
            life.stopping = True
            life.loop.enter(lambda: life.loop.create_task(life.stop(self._gone)))

    def _gone(self) -> None:
        assert self.life is not None
        life, self.life = self.life, None
        life.loop.end()
        for line, stream in life.lines.items():
            if not stream.closed:
                line.hang_up()
        for reply, host in life.calls.items():
            self._refuse(host, reply)
        self.world.after(self.world.random.uniform(1, 60), self.start)

    def order(self, command: Command) -> None:
        """Submit a command as an operator, who checks later whether it was carried out."""
        life = self.life
        if life is not None:
            life.loop.enter(lambda: life.loop.create_task(self._submit(life, command)))

    async def _submit(self, life: Life, command: Command) -> None:
        with suppress(StrataError):
            await life.engine.submit(command)

    def keep(self, environment: dict[str, str]) -> str:
        """Put an environment into the vault, under a key that the seed determines."""
        self._kept += 1
        key = f"{self._kept:032x}"
        (self.vault / Vault(self.vault).keep(environment)).rename(self.vault / key)
        return key

    def open(self, line: Line) -> None:
        """Open a stream of a process."""
        life = self.life
        if life is None:
            line.hang_up()
        else:
            life.loop.enter(self._open, life, line)

    def _open(self, life: Life, line: Line) -> None:
        line.stream = VirtualStream(life.server, life.loop, line, self._sends, self._defect)
        life.lines[line] = line.stream

    def say(self, line: Line, payload: bytes, sign: Sign | None) -> None:
        """Take a message of a process; `sign` says which sign of life it is, if any."""
        stream, life = line.stream, self.life
        if stream is None or life is None or line not in life.lines:
            line.hang_up()
            return
        if sign is not None and not stream.closed:
            self.promises.noticed(line.peer.name, line.incarnation, self.world.now_ns, sign)
        life.loop.enter(stream.take, payload)

    def lost(self, line: Line) -> None:
        """Let the coordinator notice a broken connection."""
        life = self.life
        if life is not None and line in life.lines:
            self.promises.noticed(line.peer.name, line.incarnation, self.world.now_ns, "broken")
            life.loop.enter(life.lines.pop(line).lose)

    def call(self, host: str, path: str, payload: bytes, reply: Callable[[Reply], None]) -> None:
        """Take a unary call; `reply` is called at the caller when it is answered or broken."""
        life = self.life
        if life is None:
            self._refuse(host, reply)
            return
        life.calls[reply] = host
        life.loop.enter(lambda: life.loop.create_task(self._call(life, host, path, payload, reply)))

    async def _call(
        self, life: Life, host: str, path: str, payload: bytes, reply: Callable[[Reply], None]
    ) -> None:
        method = life.server.methods[f"/{SERVICE}/{path}"]
        try:
            result = await answer(life.server, method, path, host, payload)
        except Exception as error:
            self._defect(error)
            return
        del life.calls[reply]
        if path == "RegisterWorker" and result.error is None:
            self._guard(
                self.promises.registered, pb.RegisterWorkerResponse.FromString(result.payload)
            )
        self.network.send(host, False, reply, result)

    def _refuse(self, host: str, reply: Callable[[Reply], None]) -> None:
        broken = Reply(error=Unavailable("the connection broke"))
        self.network.send(host, False, reply, broken)

    def _sends(self, line: Line, message: Message) -> None:
        if isinstance(message, pb.CoordinatorMessage) and message.HasField("standing"):
            self._guard(self.promises.standing_sent, message.standing)

    def _stored(self, events: Sequence[Event]) -> None:
        self._guard(self.promises.stored, events)
        if events and self.life is not None and events[0].seq != self._seen:
            stored = f"facts from {self._seen} to {events[0].seq - 1}"
            self.world.fail(Broken(f"{stored} are on disk and were never published"))

    def _follow(self, kernel: Kernel, events: Sequence[Event]) -> None:
        self._publish(kernel, list(events))

    def _publish(self, kernel: Kernel, events: list[Event]) -> None:
        self.turns += 1
        self._seen += len(events)
        for observe in self.on_turn:
            self._guard(observe, kernel.state, events)

    def _ended(self, error: Exception) -> None:
        broken = Broken(f"the engine ended: {error!r}")
        broken.__cause__ = error
        self.world.fail(broken)

    def _defect(self, error: BaseException) -> None:
        broken = Broken(f"a handler raised {error!r}")
        broken.__cause__ = error
        self.world.fail(broken)

    def _guard(self, check: Callable[..., None], *args: object) -> None:
        """Report a broken guarantee from within the coordinator without disturbing it."""
        try:
            check(*args)
        except Broken as broken:
            self.world.fail(broken)
