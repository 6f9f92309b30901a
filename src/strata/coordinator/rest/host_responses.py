"""JSON structures of hosts: their agents, and their measured health."""

from msgspec import Struct

from strata.coordinator.rest.response_models import AgentResponse
from strata.core.hosts.host_health import GpuHealth, HostFigures


class GpuHealthResponse(GpuHealth, frozen=True, omit_defaults=False, kw_only=True):
    """The health of one GPU; null is what its driver does not report.

    ECC errors and PCIe replays count since the driver was loaded, NVLink errors since the GPU was
    reset, Xid errors since the reporter started. Throughput is the mean since the measurement
    before. `throttle_reasons` are separated by commas.
    """


class HostHealthResponse(HostFigures, frozen=True, omit_defaults=False, kw_only=True):
    """The health of a host and its GPUs; null is what its kernel does not report.

    Pressure is the share of the last minute in which some process waited for the resource. OOM
    kills count since the host booted, those of the cgroup since it was created.
    """

    gpus: list[GpuHealthResponse]


class HostResponse(Struct, frozen=True, kw_only=True):
    """A host; `agent` is null if it has none, `health` and `measured_at` if it was not measured."""

    id: str
    hostname: str
    agent: AgentResponse | None
    reporter: str | None
    measured_at: int | None
    health: HostHealthResponse | None
