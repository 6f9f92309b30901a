"""Hosts that are not used: excluded by a person, because of a hardware fault or a failed self-test,
or after failures. What can be attributed to a GPU excludes only that (see `gpu_exclusion`).

Placement does not use an excluded host. Workers that run there go on. An exclusion holds until a
person includes the host again.

Failures. When a worker is lost, or its process ends before it joined, the failure is attributed to
its host; if its process ended, also to the GPUs that it had. One failure counts for each generation
of a task: the first one, because it often takes the other workers with it. The loss of a whole
host, SIGTERM and SIGINT do not count.

A host is excluded after failures when, within `exclude_window_s`, at least `exclude_after_tasks`
different tasks failed there whose scripts failed on no other host. So a script that fails
everywhere excludes no host, and a task that fails again and again counts once. A GPU is excluded by
the same rule among all GPUs, if its host has a usable slot without it; its failures do not count
for the host then. The last usable host is never excluded after failures or a failed self-test: its
tasks would wait without end, and a common cause, such as a full network disk, would exclude every
host.

Hardware faults. With `exclude_on_gpu_faults` a GPU is excluded when it is lost, has a further
uncorrected ECC error or a further Xid error of `FATAL_XIDS`; its host is, if its agent did not say
which GPUs its slots have. A GPU that is not measured any
more is no fault: its agent may have been restarted with fewer visible GPUs.
"""

from collections.abc import Iterable, Sequence

from msgspec import field

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.hosts.gpu_exclusion import (
    exclude_gpu,
    known_host,
    leaves_slots,
    offered_gpu,
    offered_gpus,
)
from strata.core.hosts.host_health import FATAL_XIDS, GpuHealth, HostHealth, new_error
from strata.core.limits import require_text, shortened
from strata.core.state import Cluster, Excluder, HostFailure
from strata.core.task_state import Task
from strata.core.tasks.host_slots import is_usable
from strata.core.tasks.placement import place_waiting
from strata.core.workers.fencing import require_agent
from strata.errors import InvalidArgument, NotFound

MAX_FAILURES = 32
TASKS_NAMED = 5
UNCOUNTED = frozenset({"signal 2", "signal 15"})
SECOND_NS = 1_000_000_000


class FailureAttributed(Fact, frozen=True, kw_only=True):
    """A failure of a worker is attributed to the host on which it ran, and to `gpus`, those that
    its process had."""

    sentence = "the failure of {worker} is attributed to host {host}[: {reason}]"

    host: str
    task: str
    worker: str
    script: str
    generation: int
    reason: str
    gpus: list[str] = field(default_factory=list)


class HostExcluded(Fact, frozen=True, kw_only=True):
    """No worker is placed on this host from now on; running ones go on."""

    sentence = "host {host} was excluded[: {reason}]"

    host: str
    reason: str
    by: Excluder


class HostIncluded(Fact, frozen=True, kw_only=True):
    """Workers are placed on this host again; its earlier failures no longer count."""

    sentence = "host {host} was included again[: {reason}]"

    host: str
    reason: str


class ReportSelfTest(Command, frozen=True):
    """The host of an agent failed its self-test before a task started; or only one GPU did."""

    agent: str
    incarnation: int
    task: str
    reason: str
    gpu: str = ""


class ExcludeHost(Command, frozen=True):
    host: str
    reason: str


class IncludeHost(Command, frozen=True):
    host: str
    reason: str = ""


@applies(FailureAttributed)
def _attributed(state: Cluster, fact: FailureAttributed, event: Event) -> None:
    failure = HostFailure(task=fact.task, script=fact.script, wall_ns=event.wall_ns, gpus=fact.gpus)
    failures = known_host(state, fact.host).failures
    failures.append(failure)
    del failures[:-MAX_FAILURES]
    state.tasks[fact.task].attributed = fact.generation


@applies(HostExcluded)
def _excluded(state: Cluster, fact: HostExcluded, event: Event) -> None:
    host = known_host(state, fact.host)
    host.excluded = fact.reason
    host.excluded_by = fact.by
    host.excluded_ns = event.wall_ns


@applies(HostIncluded)
def _included(state: Cluster, fact: HostIncluded, event: Event) -> None:
    host = known_host(state, fact.host)
    host.excluded = host.excluded_by = ""
    host.excluded_ns = 0
    host.failures.clear()


@decides(ExcludeHost)
def exclude(d: Decision, c: ExcludeHost) -> None:
    """Exclude a host for a person's reason; nothing happens if it is excluded already."""
    _require_known(d.state, c.host)
    require_text(reason=c.reason)
    if not c.reason.strip():
        raise InvalidArgument(
            f"no reason to exclude host {c.host!r}",
            hint="give the reason, which `strata hosts` and the page Settings show",
        )
    if not is_excluded(d.state, c.host):
        d.record(HostExcluded(host=c.host, reason=c.reason, by="person"), c.cause)


@decides(ReportSelfTest)
def report_self_test(d: Decision, c: ReportSelfTest) -> None:
    """Exclude a GPU or host that failed its self-test, unless no other slot is usable then."""
    require_agent(d.state, c.agent, c.incarnation)
    reason = shortened(f"the self-test before {c.task} failed: {c.reason}")
    gpu = next((each for each in offered_gpus(d.state, c.agent) if each.key == c.gpu), None)
    elsewhere = _another_is_usable(d.state, c.agent)
    if gpu is not None and (elsewhere or leaves_slots(d.state, c.agent, [gpu])):
        exclude_gpu(d, c.agent, gpu, reason, "self-test", c.cause)
    elif gpu is None and elsewhere and not is_excluded(d.state, c.agent):
        d.record(HostExcluded(host=c.agent, reason=reason, by="self-test"), c.cause)


@decides(IncludeHost)
def include(d: Decision, c: IncludeHost) -> None:
    """Include an excluded host again, and place what waits for slots."""
    _require_known(d.state, c.host)
    require_text(reason=c.reason)
    if is_excluded(d.state, c.host):
        place_waiting(d, d.record(HostIncluded(host=c.host, reason=c.reason), c.cause))


def is_excluded(state: Cluster, host: str) -> bool:
    """Whether no worker is placed on a host."""
    known = state.hosts.get(host)
    return known is not None and bool(known.excluded)


def _another_is_usable(state: Cluster, host: str) -> bool:
    """Whether workers can be placed on another host."""
    return any(agent != host and is_usable(state, agent) for agent in state.agents)


def _require_known(state: Cluster, host: str) -> None:
    if host not in state.hosts and host not in state.agents:
        raise NotFound(f"there is no host {host!r}", hint="strata hosts lists them")


def attribute(
    d: Decision,
    task: Task,
    worker: str,
    reason: str,
    how: str,
    cause: str,
    gpus: Sequence[str] = (),
) -> None:
    """Attribute a worker's failure to its host and GPUs; exclude what failed once too often.

    `how` is the kind of failure: an exit code, a signal, or what was missed.
    """
    placement = task.placements.get(worker)
    ends = task.state == "stopping" or how in UNCOUNTED
    if placement is None or ends or task.attributed == task.generation:
        return
    attributed = FailureAttributed(
        host=placement.agent,
        task=task.id,
        worker=worker,
        script=task.spec.entry or task.spec.name,
        generation=task.generation,
        reason=shortened(reason),
        gpus=list(gpus),
    )
    recorded = d.record(attributed, cause)
    least = d.state.rules.exclude_after_tasks
    if least and not _judge_gpus(d, placement.agent, gpus, least, recorded):
        _judge(d, placement.agent, least, recorded)


def _judge_gpus(d: Decision, host: str, keys: Sequence[str], least: int, cause: str) -> bool:
    """Exclude those of the GPUs on which enough different tasks failed whose scripts failed
    without them nowhere; returns whether there were any."""
    failures = _failures(d)
    bad: dict[str, str] = {}
    for key in keys:
        failed = _failed_tasks(each for at, each in failures if at == host and key in each.gpus)
        others = (each for at, each in failures if at != host or key not in each.gpus)
        failed = _without(failed, others)
        if len(failed) >= least:
            bad[key] = _reason(failed, "on this GPU, and their scripts nowhere else")
    gpus = [gpu for gpu in offered_gpus(d.state, host) if gpu.key in bad]
    if not gpus or not leaves_slots(d.state, host, gpus):
        return False
    for gpu in gpus:
        exclude_gpu(d, host, gpu, bad[gpu.key], "failures", cause)
    return True


def _judge(d: Decision, host: str, least: int, cause: str) -> None:
    """Exclude a host on which enough different tasks failed whose scripts failed nowhere else;
    failures on a GPU that is excluded do not count."""
    failures, excluded = _failures(d), d.state.hosts[host].excluded_gpus
    failed = _failed_tasks(
        each for at, each in failures if at == host and excluded.keys().isdisjoint(each.gpus)
    )
    failed = _without(failed, (each for at, each in failures if at != host))
    if len(failed) < least or is_excluded(d.state, host) or not _another_is_usable(d.state, host):
        return
    reason = _reason(failed, "here, and their scripts on no other host")
    d.record(HostExcluded(host=host, reason=reason, by="failures"), cause)


def _failures(d: Decision) -> list[tuple[str, HostFailure]]:
    """The host and each failure attributed to it within the window."""
    since_ns = d.now.wall_ns - int(d.state.rules.exclude_window_s * SECOND_NS)
    hosts = d.state.hosts.values()
    return [(host.id, each) for host in hosts for each in host.failures if each.wall_ns >= since_ns]


def _failed_tasks(failures: Iterable[HostFailure]) -> dict[str, str]:
    """The script of each task that failed, in the order of the failures."""
    return {each.task: each.script for each in failures}


def _without(failed: dict[str, str], others: Iterable[HostFailure]) -> dict[str, str]:
    """The failed tasks whose scripts are not among the other failures."""
    elsewhere = {each.script for each in others}
    return {task: script for task, script in failed.items() if script not in elsewhere}


def _reason(failed: dict[str, str], where: str) -> str:
    named = ", ".join(f"{task} ({script})" for task, script in list(failed.items())[:TASKS_NAMED])
    return shortened(f"{len(failed)} different tasks failed {where}: {named}")


def exclude_for_fault(
    d: Decision, host: str, before: HostHealth | None, now: HostHealth, cause: str
) -> None:
    """Exclude the GPUs that have a new fault since the measurement before by their agent. The host
    is excluded instead if its agent did not say which GPUs its slots have."""
    known = {gpu.index: gpu for gpu in before.gpus} if before is not None else {}
    for gpu in now.gpus if d.state.rules.exclude_on_gpu_faults else ():
        fault = new_fault(known.get(gpu.index), gpu)
        offered = offered_gpu(d.state, host, gpu)
        if fault and offered is not None:
            exclude_gpu(d, host, offered, fault, "fault", cause)
        elif fault and not is_excluded(d.state, host):
            reason = f"GPU {gpu.index}: {fault}"
            d.record(HostExcluded(host=host, reason=reason, by="fault"), cause)


def new_fault(before: GpuHealth | None, now: GpuHealth) -> str:
    """The fault of a GPU that was not there before; empty without one."""
    error = new_error(before, now)
    if error is None or error.xid is None:
        return "" if error is None else error.text
    return f"{error.text}, {FATAL_XIDS[error.xid]}" if error.xid in FATAL_XIDS else ""
