"""The coordinator's server process: starts and stops store, engine, gRPC, REST and logs.

Parts start in the order of their dependencies and stop in reverse: no new calls, then the running
calls, then the queued requests, then the files. If a port, the data folder or a certificate cannot
be used, the start fails with one error and nothing stays running.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.coordinator.access.call_authorizer import Authorize, authorizer
from strata.coordinator.access.keyring import Keyring
from strata.coordinator.alerts.alert_service import Alerts
from strata.coordinator.archive.log_upkeep import compacting
from strata.coordinator.archive.run_archiver import Archiver
from strata.coordinator.checkpoint_files import CheckpointPlaces, Sealing
from strata.coordinator.connection_capacity import Capacity, capacity, shortage, wanted_files
from strata.coordinator.coordinator_store import OwnStore, open_store
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.engine.waiters import BarrierWaiters
from strata.coordinator.fact_log_lines import log_facts
from strata.coordinator.logs.log_handler import StoreHandler
from strata.coordinator.logs.log_store import LogStore
from strata.coordinator.metrics.coordinator_metrics import Metrics, Probes
from strata.coordinator.rest.app import create_app
from strata.coordinator.rest.http_server import port_error, serve
from strata.coordinator.rest.ports import Api
from strata.coordinator.rest.request_checks import HttpLimits
from strata.coordinator.rest.security import is_loopback
from strata.coordinator.rest.views.past_state import PastReader
from strata.coordinator.server_certificates import (
    GRPC,
    ServerCertificates,
    renewing,
    server_certificates,
)
from strata.coordinator.sessions.agent_sessions import AgentSessions
from strata.coordinator.sessions.intake import Intakes, LineIntake
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.coordinator.sessions.unary_calls import SERVICE, UnaryCalls, status_of
from strata.coordinator.sessions.workdir_calls import WorkdirCalls
from strata.coordinator.sessions.worker_sessions import WorkerSessions
from strata.coordinator.workdir_store import Workdirs, swept
from strata.coordinator.wrong_tokens import MIN_TOKEN_CHARS, WrongTokens
from strata.core.rule_settings import Rules, Timeouts
from strata.errors import SettingError
from strata.wire.grpc.connection_budget import raise_limit
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.grpc.health_service import HealthService
from strata.wire.grpc.reflection_service import serve_reflection

log = logging.getLogger(__name__)

STOP_GRACE_S = 2.0
LOOK_S = 0.2


@dataclass(frozen=True)
class Running:
    """A running coordinator."""

    engine: Engine
    sessions: WorkerSessions
    metrics: Metrics
    grpc_port: int
    http_url: str
    token: str
    sealing: Sealing
    leads: Callable[[], bool]

    async def until_deposed(self) -> None:
        """Wait until another coordinator may lead, which never happens with a store of its own."""
        while self.leads():
            await asyncio.sleep(LOOK_S)


def with_token(settings: Settings) -> Settings:
    """The settings, with a generated token if none is set and the address is not loopback.

    Raises if the token is so short that other machines could guess it.
    """
    reachable = not (is_loopback(settings.grpc_host) and is_loopback(settings.http_host))
    if reachable and not settings.token:
        return msgspec.structs.replace(settings, token=secrets.token_urlsafe(24))
    if reachable and len(settings.token) < MIN_TOKEN_CHARS:
        raise SettingError(
            f"the token has {len(settings.token)} characters, which other machines could guess",
            hint=f"set one of at least {MIN_TOKEN_CHARS} random characters, or none: "
            "then `strata up` makes one and prints it",
        )
    return settings


@asynccontextmanager
async def running(settings: Settings, release: str) -> AsyncIterator[Running]:
    """Run a coordinator while the context is open."""
    tls = server_certificates(settings)
    room = capacity(settings.max_workers, raise_limit(wanted_files(settings.max_workers)))
    warn_of_shortage(room, settings.max_workers)
    with (
        open_store(settings) as own,
        log_store(Path(settings.data_dir) / "logs", settings.log_max_bytes) as logs,
    ):
        kernel = Kernel(own.store, read_clock, timeouts_of(settings), settings.snapshot_every_facts)
        started = kernel.start(secrets.token_hex(4), release, rules_of(settings))
        engine = Engine(kernel, settings.inbox_limit)
        engine.follow(log_facts)
        own.vault.sweep(kernel.state)
        workdirs = swept(Workdirs(Path(settings.data_dir) / "workdirs", settings), kernel.state)
        heartbeats, barriers = Heartbeats(), BarrierWaiters(engine)
        metrics = Metrics(engine, heartbeats)
        alerts = Alerts(engine, heartbeats, settings)
        lines, intakes = LineIntake(logs), Intakes(own.store, alerts.read_losses)
        sessions = WorkerSessions(engine, heartbeats, barriers, metrics, lines, intakes, own.tokens)
        agents = AgentSessions(
            engine, heartbeats, lines, intakes, own.vault, metrics, settings, sessions.backlog
        )
        metrics.probes = Probes(
            inbox_depth=engine.inbox_depth, sessions=sessions.open.__len__, logs=logs.stats
        )
        places = CheckpointPlaces(settings, kernel.state.cluster)
        sealing = Sealing(engine, heartbeats, places, settings.checkpoint_timeout_s)
        calls = UnaryCalls(
            engine, heartbeats, barriers, metrics, settings.heartbeat_interval_s, places
        )
        keyring, wrong_tokens = keyring_of(own, kernel, settings), WrongTokens(time.monotonic)
        sessions.keyring = agents.keyring = keyring
        authorize = authorizer(keyring, wrong_tokens)
        serving = grpc_serving(calls, workdirs, sessions, agents, settings, tls, room, authorize)
        working = taking_turns(engine), sealing_checkpoints(sealing), renewing(tls)
        async with working[0], working[1], working[2], serving as grpc_port:
            api = Api(
                engine=engine,
                heartbeats=heartbeats,
                logs=logs,
                metrics=metrics,
                vault=own.vault,
                places=places,
                workdirs=workdirs,
                previews=sessions.previews,
                watched=sessions.watched,
                version=release,
                started_ms=read_clock().wall_ns // 1_000_000,
                address=f"{settings.grpc_host}:{grpc_port}",
                agent_connected=agents.open.__contains__,
                alerts=alerts.delivery,
                keyring=keyring,
            )
            past = PastReader(engine, settings)
            serving_http = http_serving(api, settings, room.http, past, wrong_tokens, tls)
            keeping, joining = archiving(engine, settings), compacting(engine.kernel.store)
            async with keeping, joining, alerts.working(past.ask), serving_http as http_url:
                log_facts(started.events)
                ports = (grpc_port, http_url, settings.token)
                yield Running(engine, sessions, metrics, *ports, sealing, own.store.leads)


def archiving(engine: Engine, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Archive finished runs while the context is open, if the settings say so.

    The data folder of one coordinator is no place for what a shared store has.
    """
    if not settings.archive_runs:
        return nullcontext()
    if settings.store and not settings.archive_to:
        log.info("finished runs stay in the store: set archive_to to a place that all can reach")
        return nullcontext()
    return Archiver(engine, settings).working()


def warn_of_shortage(room: Capacity, workers: int) -> None:
    """Log that open files or memory are enough for fewer workers than the settings allow."""
    if short := shortage(room, workers):
        log.warning("%s", short)


def rules_of(settings: Settings) -> Rules:
    """The settings that decisions depend on."""
    return Rules(
        max_workers=settings.max_workers,
        keep_count=settings.keep_count,
        continue_ended=settings.continue_ended,
        max_media_bytes=settings.max_media_bytes,
        exclude_after_tasks=settings.exclude_after_tasks,
        exclude_window_s=settings.exclude_window_s,
        exclude_on_gpu_faults=settings.exclude_on_gpu_faults,
    )


def keyring_of(own: OwnStore, kernel: Kernel, settings: Settings) -> Keyring:
    """The tokens that this coordinator accepts."""
    return Keyring(lambda: kernel.state, settings.token, own.tokens.for_workers())


@asynccontextmanager
async def taking_turns(engine: Engine) -> AsyncIterator[None]:
    """Run the engine; at exit it processes the queued requests."""
    engine.start()
    try:
        yield
    finally:
        await engine.stop()  # raises the exception that ended the engine, if there was one


@asynccontextmanager
async def sealing_checkpoints(sealing: Sealing) -> AsyncIterator[None]:
    """Commit and delete checkpoints; the next coordinator continues unfinished work."""
    sealing.start()
    try:
        yield
    finally:
        await sealing.stop()


@asynccontextmanager
async def grpc_serving(
    calls: UnaryCalls,
    workdirs: Workdirs,
    sessions: WorkerSessions,
    agents: AgentSessions,
    settings: Settings,
    tls: ServerCertificates | None,
    room: Capacity,
    authorize: Authorize,
) -> AsyncIterator[int]:
    """Serve gRPC with health checking and reflection; yields the port."""
    server = GrpcServer(
        bounds=room.bounds,
        keepalive_interval_s=settings.heartbeat_interval_s,
        keepalive_timeout_s=settings.heartbeat_timeout_s,
        status_of=status_of,
        authorize=authorize,
    )
    health = HealthService()
    calls.serve(server, sessions, agents)
    WorkdirCalls(calls.engine, workdirs, calls.metrics).serve(server)
    health.serve_on(server)
    serve_reflection(server)
    try:
        context = tls.context(GRPC) if tls is not None else None
        port = await server.listen(settings.grpc_host, settings.grpc_port, context)
    except OSError as error:
        raise port_error("grpc", settings.grpc_host, settings.grpc_port, error) from error
    health.set(SERVICE, True)
    try:
        yield port
    finally:
        health.close()
        sessions.end()
        agents.end()
        await server.close(STOP_GRACE_S)


@asynccontextmanager
async def http_serving(
    api: Api,
    settings: Settings,
    limits: HttpLimits | None = None,
    past: PastReader | None = None,
    wrong_tokens: WrongTokens | None = None,
    tls: ServerCertificates | None = None,
) -> AsyncIterator[str]:
    """Serve the REST API and the dashboard; yields their URL."""
    app = create_app(api, settings, limits, past, wrong_tokens)
    async with serve(app, settings.http_host, settings.http_port, tls) as served:
        yield served.url


@contextmanager
def log_store(path: Path, max_bytes: int) -> Iterator[LogStore]:
    """Open the log store; this process's own log records are stored in it too."""
    store = LogStore(path, max_bytes)
    handler = StoreHandler(store)
    logging.getLogger("strata").addHandler(handler)
    try:
        yield store
    finally:
        logging.getLogger("strata").removeHandler(handler)
        store.close()


def timeouts_of(settings: Settings) -> Timeouts:
    """The liveness timeouts that are set; those without a setting have their default."""
    names = set(Timeouts.__struct_fields__) & set(settings.__struct_fields__)
    return Timeouts(**{name: getattr(settings, name) for name in names})
