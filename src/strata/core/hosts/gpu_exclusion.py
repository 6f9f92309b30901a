"""GPUs that are not given to workers: excluded by a person, because of a fault or a failed
self-test, or after failures.

An agent divides its GPUs among its slots and names them when it registers. A slot with an excluded
GPU is not used, so a worker always gets as many GPUs as its slot has; a host all of whose slots
have an excluded GPU takes no workers. Workers that run on an excluded GPU go on. An exclusion holds
until a person includes the GPU again.

A GPU is known by its UUID where the driver tells it, since its index changes when another one is
removed. An excluded GPU is found by its index only if one of the two has no UUID.
"""

from collections.abc import Iterable

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.hosts.host_health import GpuHealth
from strata.core.limits import require_text
from strata.core.state import Cluster, ExcludedGpu, Excluder, Gpu, Host
from strata.core.tasks.host_slots import is_gpu_excluded, usable_slots
from strata.core.tasks.placement import place_waiting
from strata.errors import InvalidArgument, NotFound

MAX_EXCLUDED = 256
"""Excluded GPUs of one host."""


class GpuExcluded(Fact, frozen=True, kw_only=True):
    """No worker gets this GPU from now on; `gpu` is its index. Workers that use it go on."""

    sentence = "GPU {gpu} of host {host} was excluded[: {reason}]"

    host: str
    gpu: int
    uuid: str = ""
    reason: str
    by: Excluder


class GpuIncluded(Fact, frozen=True, kw_only=True):
    """Workers get this GPU again; the failures on it no longer count."""

    sentence = "GPU {gpu} of host {host} was included again[: {reason}]"

    host: str
    gpu: int
    uuid: str = ""
    reason: str


class ExcludeGpu(Command, frozen=True):
    """`gpu` is an index or a UUID."""

    host: str
    gpu: str
    reason: str


class IncludeGpu(Command, frozen=True):
    host: str
    gpu: str
    reason: str = ""


@applies(GpuExcluded)
def _excluded(state: Cluster, fact: GpuExcluded, event: Event) -> None:
    gpu = Gpu(index=fact.gpu, uuid=fact.uuid)
    host = known_host(state, fact.host)
    host.excluded_gpus[gpu.key] = ExcludedGpu(
        gpu=gpu, reason=fact.reason, by=fact.by, wall_ns=event.wall_ns
    )
    if len(host.excluded_gpus) > MAX_EXCLUDED:
        del host.excluded_gpus[next(iter(host.excluded_gpus))]


@applies(GpuIncluded)
def _included(state: Cluster, fact: GpuIncluded, event: Event) -> None:
    gpu = Gpu(index=fact.gpu, uuid=fact.uuid)
    host = known_host(state, fact.host)
    host.excluded_gpus.pop(gpu.key, None)
    host.failures = [failure for failure in host.failures if gpu.key not in failure.gpus]


@decides(ExcludeGpu)
def exclude(d: Decision, c: ExcludeGpu) -> None:
    """Exclude a GPU for a person's reason; nothing happens if it is excluded already."""
    require_text(gpu=c.gpu, reason=c.reason)
    if not c.reason.strip():
        raise InvalidArgument(
            f"no reason to exclude GPU {c.gpu} of host {c.host!r}",
            hint="give the reason, which `strata hosts` and the page Settings show",
        )
    exclude_gpu(d, c.host, named_gpu(d.state, c.host, c.gpu), c.reason, "person", c.cause)


@decides(IncludeGpu)
def include(d: Decision, c: IncludeGpu) -> None:
    """Include an excluded GPU again, and place what waits for slots."""
    require_text(gpu=c.gpu, reason=c.reason)
    host = d.state.hosts.get(c.host)
    excluded = [each.gpu for each in host.excluded_gpus.values()] if host is not None else []
    named = named_gpu(d.state, c.host, c.gpu)
    recorded = [
        d.record(GpuIncluded(host=c.host, gpu=gpu.index, uuid=gpu.uuid, reason=c.reason), c.cause)
        for gpu in excluded
        if gpu.is_same(named)
    ]
    if recorded:
        place_waiting(d, recorded[-1])


def exclude_gpu(
    d: Decision, host: str, gpu: Gpu, reason: str, by: Excluder, cause: str | tuple[str, ...]
) -> None:
    """Record that a GPU is excluded, unless it is already."""
    known = d.state.hosts.get(host)
    if known is None or not is_gpu_excluded(known, gpu):
        excluded = GpuExcluded(host=host, gpu=gpu.index, uuid=gpu.uuid, reason=reason, by=by)
        d.record(excluded, cause)


def offered_gpus(state: Cluster, host: str) -> list[Gpu]:
    """The GPUs that the agent of a host gives to its workers."""
    agent = state.agents.get(host)
    found = {gpu.key: gpu for slot in (agent.gpus if agent is not None else ()) for gpu in slot}
    return list(found.values())


def excluded_keys(state: Cluster, host: str) -> list[str]:
    """The keys of the offered GPUs that no worker gets, as the agent knows them."""
    known = state.hosts.get(host)
    if known is None or not known.excluded_gpus:
        return []
    return [gpu.key for gpu in offered_gpus(state, host) if is_gpu_excluded(known, gpu)]


def offered_gpu(state: Cluster, host: str, gpu: GpuHealth) -> Gpu | None:
    """The offered GPU that was measured, if it is one."""
    same = (each for each in offered_gpus(state, host) if each.is_same(Gpu(gpu.index, gpu.uuid)))
    return next(same, None)


def known_gpus(state: Cluster, host: str) -> list[Gpu]:
    """The GPUs of a host that its agent offers, that were measured, or that are excluded."""
    found = offered_gpus(state, host)
    known = state.hosts.get(host)
    if known is not None:
        measured = known.health.gpus if known.health is not None else ()
        others = [Gpu(gpu.index, gpu.uuid) for gpu in measured]
        for gpu in (*others, *(each.gpu for each in known.excluded_gpus.values())):
            if not any(gpu.is_same(each) for each in found):
                found.append(gpu)
    return sorted(found, key=lambda gpu: gpu.index)


def named_gpu(state: Cluster, host: str, name: str) -> Gpu:
    """The GPU of a host with this index or UUID; raises if there is none."""
    if host not in state.hosts and host not in state.agents:
        raise NotFound(f"there is no host {host!r}", hint="strata hosts lists them")
    found = _of_name(known_gpus(state, host), name)
    if found is None:
        raise NotFound(
            f"host {host!r} has no GPU {name!r}",
            hint="give the index or the UUID of a GPU; strata hosts gpus lists them",
        )
    return found


def leaves_slots(state: Cluster, host: str, gpus: Iterable[Gpu]) -> bool:
    """Whether a slot of the host is usable without these GPUs."""
    agent, without = state.agents.get(host), list(gpus)
    if agent is None or not agent.gpus or not usable_slots(state, agent):
        return False
    known = state.hosts.get(host)
    return any(
        not any(any(gpu.is_same(each) for each in without) for gpu in slot)
        and not (known is not None and any(is_gpu_excluded(known, gpu) for gpu in slot))
        for slot in agent.gpus
    )


def known_host(state: Cluster, name: str) -> Host:
    """The host of that name; one that was never measured becomes known."""
    agent = state.agents.get(name)
    hostname = agent.hostname if agent is not None else ""
    return state.hosts.setdefault(name, Host(id=name, hostname=hostname))


def _of_name(gpus: Iterable[Gpu], name: str) -> Gpu | None:
    return next((gpu for gpu in gpus if name in (gpu.key, str(gpu.index))), None)
