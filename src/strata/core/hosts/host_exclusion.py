"""Hosts that are not used: excluded by a person, because of a hardware fault or a failed self-test,
or after failures.

Placement does not use an excluded host. Workers that run there go on. An exclusion holds until a
person includes the host again.

Failures. When a worker is lost, or its process ends before it joined, the failure is attributed to
its host. One failure counts for each generation of a task: the first one, because it often takes
the other workers with it. The loss of a whole host, SIGTERM and SIGINT do not count.

A host is excluded after failures when, within `exclude_window_s`, at least `exclude_after_tasks`
different tasks failed there whose scripts failed on no other host. So a script that fails
everywhere excludes no host, and a task that fails again and again counts once. The last usable host
is never excluded after failures or a failed self-test: its tasks would wait without end, and a
common cause, such as a full network disk, would exclude every host.

Hardware faults. With `exclude_on_gpu_faults` a host is excluded when one of its GPUs is lost, has a
further uncorrected ECC error or a further Xid error of `FATAL_XIDS`. A GPU that is not measured any
more is no fault: its agent may have been restarted with fewer visible GPUs.
"""

from typing import Literal, TypeAlias

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.hosts.host_health import FATAL_XIDS, HostHealth, new_error
from strata.core.limits import require_text, shortened
from strata.core.state import Cluster, Host, HostFailure
from strata.core.task_state import Task
from strata.core.tasks.placement import place_waiting
from strata.core.workers.fencing import require_agent
from strata.errors import InvalidArgument, NotFound

Excluder: TypeAlias = Literal["person", "failures", "fault", "self-test"]

MAX_FAILURES = 32
TASKS_NAMED = 5
UNCOUNTED = frozenset({"signal 2", "signal 15"})
SECOND_NS = 1_000_000_000


class FailureAttributed(Fact, frozen=True, kw_only=True):
    """A failure of a worker is attributed to the host on which it ran."""

    sentence = "the failure of {worker} is attributed to host {host}[: {reason}]"

    host: str
    task: str
    worker: str
    script: str
    generation: int
    reason: str


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
    """The host of an agent failed its self-test before a task started."""

    agent: str
    incarnation: int
    task: str
    reason: str


class ExcludeHost(Command, frozen=True):
    host: str
    reason: str


class IncludeHost(Command, frozen=True):
    host: str
    reason: str = ""


@applies(FailureAttributed)
def _attributed(state: Cluster, fact: FailureAttributed, event: Event) -> None:
    failure = HostFailure(task=fact.task, script=fact.script, wall_ns=event.wall_ns)
    failures = _host(state, fact.host).failures
    failures.append(failure)
    del failures[:-MAX_FAILURES]
    state.tasks[fact.task].attributed = fact.generation


@applies(HostExcluded)
def _excluded(state: Cluster, fact: HostExcluded, event: Event) -> None:
    host = _host(state, fact.host)
    host.excluded = fact.reason
    host.excluded_by = fact.by
    host.excluded_ns = event.wall_ns


@applies(HostIncluded)
def _included(state: Cluster, fact: HostIncluded, event: Event) -> None:
    host = _host(state, fact.host)
    host.excluded = host.excluded_by = ""
    host.excluded_ns = 0
    host.failures.clear()


def _host(state: Cluster, name: str) -> Host:
    """The host of that name; one that was never measured becomes known."""
    agent = state.agents.get(name)
    hostname = agent.hostname if agent is not None else ""
    return state.hosts.setdefault(name, Host(id=name, hostname=hostname))


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
    """Exclude a host that failed its self-test, unless it is the last usable one."""
    require_agent(d.state, c.agent, c.incarnation)
    if not is_excluded(d.state, c.agent) and _another_is_usable(d.state, c.agent):
        reason = shortened(f"the self-test before {c.task} failed: {c.reason}")
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
    return any(
        agent.up and agent.id != host and not is_excluded(state, agent.id)
        for agent in state.agents.values()
    )


def _require_known(state: Cluster, host: str) -> None:
    if host not in state.hosts and host not in state.agents:
        raise NotFound(f"there is no host {host!r}", hint="strata hosts lists them")


def attribute(d: Decision, task: Task, worker: str, reason: str, how: str, cause: str) -> None:
    """Attribute a worker's failure to its host, and exclude the host if that was one too many.

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
    )
    _judge(d, placement.agent, d.record(attributed, cause))


def _judge(d: Decision, host: str, cause: str) -> None:
    """Exclude a host on which enough different tasks failed whose scripts failed nowhere else."""
    rules, state = d.state.rules, d.state
    since_ns = d.now.wall_ns - int(rules.exclude_window_s * SECOND_NS)
    failed = _failed_tasks(state.hosts[host], since_ns)
    if not rules.exclude_after_tasks or len(failed) < rules.exclude_after_tasks:
        return
    others = (each for each in state.hosts.values() if each.id != host)
    elsewhere = {script for other in others for script in _failed_tasks(other, since_ns).values()}
    failed = {task: script for task, script in failed.items() if script not in elsewhere}
    if len(failed) < rules.exclude_after_tasks or is_excluded(state, host):
        return
    if not _another_is_usable(state, host):
        return
    named = ", ".join(f"{task} ({script})" for task, script in list(failed.items())[:TASKS_NAMED])
    reason = shortened(
        f"{len(failed)} different tasks failed here, and their scripts on no other host: {named}"
    )
    d.record(HostExcluded(host=host, reason=reason, by="failures"), cause)


def _failed_tasks(host: Host, since_ns: int) -> dict[str, str]:
    """The script of each task that failed on a host, in the order of the failures."""
    return {each.task: each.script for each in host.failures if each.wall_ns >= since_ns}


def exclude_for_fault(
    d: Decision, host: str, before: HostHealth | None, now: HostHealth, cause: str
) -> None:
    """Exclude a host whose GPUs have a new fault since the measurement before by its agent."""
    fault = new_fault(before, now)
    if fault and d.state.rules.exclude_on_gpu_faults and not is_excluded(d.state, host):
        d.record(HostExcluded(host=host, reason=fault, by="fault"), cause)


def new_fault(before: HostHealth | None, now: HostHealth) -> str:
    """The first GPU fault that was not there before; empty without one."""
    known = {gpu.index: gpu for gpu in before.gpus} if before is not None else {}
    for gpu in now.gpus:
        error = new_error(known.get(gpu.index), gpu)
        if error is not None and error.xid is None:
            return f"GPU {gpu.index}: {error.text}"
        if error is not None and error.xid in FATAL_XIDS:
            return f"GPU {gpu.index}: {error.text}, {FATAL_XIDS[error.xid]}"
    return ""
