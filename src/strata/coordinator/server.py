"""The coordinator as a server: store, engine, gRPC, REST and logs, put together and taken apart.

It starts in the order in which things depend on each other and stops in the reverse: no new calls,
then the calls that run, then what is in the inbox, then the files. Whatever it needs and cannot
have (a port, the data folder, a certificate) is one sentence and no half-started server.
"""

import errno
import hmac
import logging
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.coordinator.agent_sessions import AgentSessions
from strata.coordinator.archiving import Archiver
from strata.coordinator.capacity import Capacity, capacity, shortage, wanted_files
from strata.coordinator.clock import read_clock
from strata.coordinator.compaction import compacting
from strata.coordinator.engine import Engine
from strata.coordinator.http.app import create_app
from strata.coordinator.http.limits import Limits
from strata.coordinator.http.ports import Api
from strata.coordinator.http.security import is_loopback
from strata.coordinator.http.server import serve
from strata.coordinator.intake import Intakes
from strata.coordinator.lines import LineIntake
from strata.coordinator.logs import LogStore
from strata.coordinator.logs.handler import StoreHandler
from strata.coordinator.measured import MeasuredKernel
from strata.coordinator.metrics import Metrics, Probes
from strata.coordinator.narrate import narrate
from strata.coordinator.observed import Observed
from strata.coordinator.places import CheckpointPlaces
from strata.coordinator.rpc import SERVICE, UnaryCalls, status_of
from strata.coordinator.sealing import Sealing
from strata.coordinator.sessions import Sessions
from strata.coordinator.tokens import PeerTokens
from strata.coordinator.vault import Vault
from strata.coordinator.waiting import BarrierRoom
from strata.core.cluster import CODEC
from strata.core.liveness import Patience
from strata.core.state import Rules
from strata.errors import SettingError, Unauthenticated, Unavailable
from strata.store.sqlite import SqliteStore
from strata.timeline.moved_facts import fetching
from strata.wire.certificates import date_problem
from strata.wire.grpc_server import GrpcServer
from strata.wire.health import Health
from strata.wire.open_files import raise_limit
from strata.wire.reflection import serve_reflection

log = logging.getLogger(__name__)

STOP_GRACE_S = 2.0


@dataclass(frozen=True)
class Running:
    """A coordinator that serves."""

    engine: Engine
    sessions: Sessions
    metrics: Metrics
    grpc_port: int
    http_url: str
    token: str


def with_token(settings: Settings) -> Settings:
    """The settings, with a token made if the address can be reached by others and none is set."""
    reachable = not (is_loopback(settings.grpc_host) and is_loopback(settings.http_host))
    if reachable and not settings.token:
        return msgspec.structs.replace(settings, token=secrets.token_urlsafe(24))
    return settings


@asynccontextmanager
async def running(settings: Settings, release: str) -> AsyncIterator[Running]:
    """A coordinator, for as long as the context is open."""
    tls = tls_context(settings)
    folder = data_folder(settings)
    room = capacity(settings.max_workers, raise_limit(wanted_files(settings.max_workers)))
    with (
        SqliteStore(folder / "log.db", CODEC, fetching(settings)) as store,
        log_store(folder / "logs", settings.log_max_bytes) as logs,
    ):
        kernel = MeasuredKernel(
            store, read_clock, patience_of(settings), settings.snapshot_every_facts
        )
        rules = Rules(max_workers=settings.max_workers, keep_count=settings.keep_count)
        started = kernel.start(secrets.token_hex(4), release, rules)
        engine = Engine(kernel, settings.inbox_limit)
        engine.follow(narrate)
        vault = Vault(folder / "vault")
        vault.sweep(kernel.state)
        observed = Observed()
        barriers = BarrierRoom(engine)
        metrics = Metrics(engine, observed)
        lines, intakes = LineIntake(logs), Intakes(store)
        tokens = PeerTokens(folder / "peers.secret")
        sessions = Sessions(engine, observed, barriers, metrics, lines, intakes, tokens)
        agents = AgentSessions(engine, lines, intakes, vault, metrics, settings, sessions.backlog)
        metrics.probes = Probes(
            inbox_depth=engine.inbox_depth, sessions=sessions.open.__len__, logs=logs.stats
        )
        places = CheckpointPlaces(settings, kernel.state.cluster)
        sealing = Sealing(engine, observed, places, settings.checkpoint_timeout_s)
        calls = UnaryCalls(
            engine, observed, barriers, metrics, settings.heartbeat_interval_s, places
        )
        if short := shortage(room, settings.max_workers):
            log.warning("%s", short)
        serving = grpc_serving(calls, sessions, agents, settings, tls, room)
        async with taking_turns(engine), sealing_checkpoints(sealing), serving as grpc_port:
            api = Api(
                engine=engine,
                observed=observed,
                logs=logs,
                metrics=metrics,
                vault=vault,
                places=places,
                previews=sessions.previews,
                version=release,
                started_ms=read_clock().wall_ns // 1_000_000,
                address=f"{settings.grpc_host}:{grpc_port}",
                agent_connected=agents.open.__contains__,
            )
            archiver = Archiver(engine, settings)
            archiving = archiver.working() if settings.archive_runs else nullcontext()
            joining = compacting(engine.kernel.store)
            serving_http = http_serving(api, settings, room.http)
            async with archiving, joining, serving_http as http_url:
                narrate(started.events)
                yield Running(engine, sessions, metrics, grpc_port, http_url, settings.token)


@asynccontextmanager
async def taking_turns(engine: Engine) -> AsyncIterator[None]:
    """The engine runs; leaving finishes what is in its inbox."""
    engine.start()
    try:
        yield
    finally:
        await engine.stop()  # raises what ended the engine, if it was not this


@asynccontextmanager
async def sealing_checkpoints(sealing: Sealing) -> AsyncIterator[None]:
    """Checkpoints are made real; leaving lets what is under way be taken up later."""
    sealing.start()
    try:
        yield
    finally:
        await sealing.stop()


@asynccontextmanager
async def grpc_serving(
    calls: UnaryCalls,
    sessions: Sessions,
    agents: AgentSessions,
    settings: Settings,
    tls: ssl.SSLContext | None,
    room: Capacity,
) -> AsyncIterator[int]:
    """The gRPC service with health checking and reflection; gives its port."""
    server = GrpcServer(
        bounds=room.bounds,
        keepalive_interval_s=settings.heartbeat_interval_s,
        keepalive_timeout_s=settings.heartbeat_timeout_s,
        status_of=status_of,
        authorize=authorizer(settings.token) if settings.token else None,
    )
    health = Health()
    calls.serve(server, sessions, agents)
    health.serve_on(server)
    serve_reflection(server)
    try:
        port = await server.listen(settings.grpc_host, settings.grpc_port, tls)
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
    api: Api, settings: Settings, limits: Limits | None = None
) -> AsyncIterator[str]:
    """The REST API and the page; gives their address."""
    app = create_app(api, settings, limits)
    async with serve(
        app,
        settings.http_host,
        settings.http_port,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    ) as served:
        yield served.url


@contextmanager
def log_store(path: Path, max_bytes: int) -> Iterator[LogStore]:
    """The log of all lines; this process's own records go there too."""
    store = LogStore(path, max_bytes)
    handler = StoreHandler(store)
    logging.getLogger("strata").addHandler(handler)
    try:
        yield store
    finally:
        logging.getLogger("strata").removeHandler(handler)
        store.close()


def data_folder(settings: Settings) -> Path:
    """The folder for everything that is kept, made if it is not there."""
    folder = Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"the data folder {folder} cannot be used: {error.strerror}",
            hint="choose another with --data-dir, or mend its permissions",
        ) from error
    return folder


def patience_of(settings: Settings) -> Patience:
    """How long to wait for what, as set."""
    return Patience(
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        connection_grace_s=settings.connection_grace_s,
        reattach_grace_s=settings.reattach_grace_s,
        barrier_timeout_s=settings.barrier_timeout_s,
        storage_timeout_s=settings.storage_timeout_s,
        hang_floor_s=settings.hang_floor_s,
    )


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """A context of certificate and key, if they are set."""
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not (settings.tls_cert and settings.tls_key):
        raise SettingError(
            "TLS needs both a certificate and a key", hint="set --tls-cert and --tls-key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"certificate {settings.tls_cert} and key {settings.tls_key} cannot be used: {error}",
            hint="both must be PEM files that belong together",
        ) from error
    if problem := date_problem(settings.tls_cert):
        log.warning("%s", problem)
    return context


def authorizer(token: str) -> Callable[[Mapping[str, str | bytes]], None]:
    """Checks the bearer token of a call."""
    expected = f"Bearer {token}".encode()

    def authorize(metadata: Mapping[str, str | bytes]) -> None:
        given = metadata.get("authorization", "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, expected):
            raise Unauthenticated(
                "a valid token is needed", hint="set STRATA_TOKEN to the coordinator's token"
            )

    return authorize


def port_error(name: str, host: str, port: int, error: OSError) -> Unavailable:
    """Why a port cannot be had, in one sentence."""
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"port {port} on {host} is in use",
            hint=f"stop what listens there, or choose another with --{name}-port",
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return Unavailable(
        f"cannot listen on {host}:{port}: {reason}",
        hint=f"choose another address with --{name}-host or --{name}-port",
    )
