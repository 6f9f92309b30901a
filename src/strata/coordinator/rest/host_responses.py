"""JSON structures of hosts: their agents, and their measured health."""

from typing import Annotated

from msgspec import Meta, Struct

from strata.coordinator.rest.response_models import AgentResponse
from strata.core.hosts.host_health import GpuHealth, HostFigures


class GpuHealthResponse(GpuHealth, frozen=True, omit_defaults=False, kw_only=True):
    """The health of one GPU; null is what its driver does not report.

    ECC errors and PCIe replays count since the driver was loaded, NVLink errors since the GPU was
    reset, Xid errors since the reporter started. PCIe throughput is a mean over 20 ms, NVLink
    throughput since the measurement before. `throttle_reasons` are separated by commas.
    """


class HostHealthResponse(HostFigures, frozen=True, omit_defaults=False, kw_only=True):
    """The health of a host and its GPUs; null is what its kernel does not report.

    Pressure is the share of the last minute in which some process waited for the resource. OOM
    kills count since the host booted, those of the cgroup since it was created.
    """

    gpus: list[GpuHealthResponse]


class HostGpuResponse(Struct, frozen=True, kw_only=True):
    """A GPU of a host; `uuid` is null if its driver does not tell it.

    `offered` is whether it belongs to a slot of the agent. `excluded` is the reason why no worker
    gets it, null if it is used.
    """

    index: int
    uuid: str | None
    offered: bool
    excluded: str | None
    excluded_by: str | None
    excluded_at: int | None


class HostResponse(Struct, frozen=True, kw_only=True):
    """A host; `agent` is null if it has none, `health` and `measured_at` if it was not measured.

    `excluded` is the reason why no worker is placed there, null if it is used. `gpus` are those
    that the agent offers, that were measured, or that are excluded. `usable_slots` are the agent's
    slots that workers may get.
    """

    id: str
    hostname: str
    agent: AgentResponse | None
    reporter: str | None
    measured_at: int | None
    health: HostHealthResponse | None
    excluded: str | None
    excluded_by: str | None
    excluded_at: int | None
    failures: int
    gpus: list[HostGpuResponse]
    usable_slots: int


class ExcludeHostRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Why no worker should be placed on the host."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class IncludeHostRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the host is used again."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class HostChangedResponse(Struct, frozen=True):
    """The host that was changed."""

    host_id: str


class GpuChangedResponse(Struct, frozen=True):
    """The GPU that was changed, as the request named it."""

    host_id: str
    gpu: str
