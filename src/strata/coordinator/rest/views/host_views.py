"""Hosts, present and past: one view of the state for both."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from strata.coordinator.rest.host_responses import (
    GpuHealthResponse,
    HostGpuResponse,
    HostHealthResponse,
    HostResponse,
)
from strata.coordinator.rest.views import state_views
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.events import COORDINATOR
from strata.core.hosts.gpu_exclusion import known_gpus, offered_gpus
from strata.core.hosts.host_health import GpuHealth, HostFigures, HostHealth
from strata.core.hosts.host_record import HostMeasured
from strata.core.state import Cluster, Host
from strata.core.tasks.host_slots import usable_slots
from strata.timeline.answers import GpuHistory, HostHistory
from strata.timeline.read.past_states import require_state
from strata.timeline.read.records import MS_NS, SECOND_NS
from strata.timeline.read.run_timeline import Timeline

HOST_FIGURES = [name for name in HostFigures.__struct_fields__ if name != "slowest_disk"]
GPU_FIGURES = [
    name
    for name in GpuHealth.__struct_fields__
    if name not in ("index", "uuid", "name", "lost", "throttle_reasons")
]
MAX_HOSTS = 500
HISTORY_NS = 3600 * SECOND_NS
HISTORY_POINTS = 300


def known_hosts(state: Cluster) -> list[Host]:
    """The hosts of agents and those that were measured."""
    unmeasured = (each for each in state.agents.values() if each.id not in state.hosts)
    hosts = [Host(id=agent.id, hostname=agent.hostname) for agent in unmeasured]
    return [*state.hosts.values(), *hosts]


def hosts(state: Cluster, heartbeats: Heartbeats, chosen: Iterable[Host]) -> list[HostResponse]:
    """Hosts with their agents and their newest health."""
    chosen = list(chosen)
    known = [state.agents[host.id] for host in chosen if host.id in state.agents]
    agents = {agent.id: agent for agent in state_views.agents(state, heartbeats, known)}
    return [
        HostResponse(
            id=host.id,
            hostname=host.hostname,
            agent=agents.get(host.id),
            reporter=host.reporter or None,
            measured_at=host.measured_ns // MS_NS or None,
            health=None if host.health is None else health_response(host.health),
            excluded=host.excluded or None,
            excluded_by=host.excluded_by or None,
            excluded_at=host.excluded_ns // MS_NS or None,
            failures=len(host.failures),
            gpus=gpus_of(state, host),
            usable_slots=usable_slots(state, state.agents[host.id])
            if host.id in state.agents
            else 0,
        )
        for host in chosen
    ]


def gpus_of(state: Cluster, host: Host) -> list[HostGpuResponse]:
    """The GPUs of a host, and which are excluded."""
    offered = offered_gpus(state, host.id)
    found = []
    for gpu in known_gpus(state, host.id):
        why = next((e for e in host.excluded_gpus.values() if e.gpu.is_same(gpu)), None)
        found.append(
            HostGpuResponse(
                index=gpu.index,
                uuid=gpu.uuid or None,
                offered=gpu in offered,
                excluded=why.reason if why is not None else None,
                excluded_by=why.by if why is not None else None,
                excluded_at=why.wall_ns // MS_NS if why is not None else None,
            )
        )
    return found


def heartbeats_of_reports(state: Cluster) -> Heartbeats:
    """The times at which agents measured their hosts, as their last heartbeats.

    So a past moment shows a time that is recorded, and the live view sends a host again only when
    it was measured.
    """
    heartbeats = Heartbeats()
    for host in state.hosts.values():
        if host.reporter in state.agents:
            heartbeats.agents[host.reporter] = host.measured_ns // MS_NS
    return heartbeats


def health_response(health: HostHealth) -> HostHealthResponse:
    """The health of a host as a JSON structure."""
    gpus = [GpuHealthResponse(**structs.asdict(gpu)) for gpu in health.gpus]
    return HostHealthResponse(**structs.asdict(health) | {"gpus": gpus})


def hosts_at(timeline: Timeline, at_ns: int) -> list[HostResponse]:
    """Hosts at a past moment."""
    state = require_state(timeline, timeline.position_at(at_ns))
    chosen = sorted(known_hosts(state), key=lambda host: host.id)[:MAX_HOSTS]
    return hosts(state, heartbeats_of_reports(state), chosen)


def history_of(timeline: Timeline, host: str, at_ns: int) -> HostHistory:
    """The figures of a host in the hour before a moment, one measurement per slot of time."""
    from_ns = at_ns - HISTORY_NS
    rows: dict[int, tuple[int, HostHealth]] = {}
    kinds = {HostMeasured.__name__}
    for record in timeline.records(from_ns, at_ns + 1, node=COORDINATOR, kinds=kinds):
        body = record.event.body
        if isinstance(body, HostMeasured) and body.host == host:
            slot = record.at_ns * HISTORY_POINTS // HISTORY_NS
            rows[slot] = (record.at_ns // MS_NS, body.health)
    measured = [health for _, health in rows.values()]
    names = {gpu.index: gpu.name for health in measured for gpu in health.gpus}
    by_index = [{gpu.index: gpu for gpu in health.gpus} for health in measured]
    return HostHistory(
        at=[at_ms for at_ms, _ in rows.values()],
        figures=columns(HOST_FIGURES, measured),
        gpus=[
            GpuHistory(
                index=index,
                name=name,
                figures=columns(GPU_FIGURES, [gpus.get(index) for gpus in by_index]),
            )
            for index, name in sorted(names.items())
        ],
    )


def columns(
    names: Sequence[str], rows: Sequence[HostFigures | GpuHealth | None]
) -> dict[str, list[float | None]]:
    """The values of each figure that was reported at least once."""
    found = {name: [getattr(row, name, None) for row in rows] for name in names}
    return {name: values for name, values in found.items() if any(v is not None for v in values)}
