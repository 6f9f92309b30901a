"""The list of problems that need attention, errors first, each with a hint.

A pure function of the state, so that the dashboard, the command line and other readers show the
same list, for the present and the past. It has the open alerts, and problems that can be seen in
the state but raise no alert. A problem that an open alert is about is only listed as the alert.
"""

from collections.abc import Iterator
from itertools import islice

from strata.coordinator.rest.response_models import Attention
from strata.core.barriers.barrier_rules import missing_workers
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks.task_queue import Queue, stuck_behind, unfinished_before

MAX_ITEMS = 20
NAMES_SHOWN = 3
SECOND_NS = 1_000_000_000
RECENT_FAILURE_NS = 3_600 * SECOND_NS
LONG_WAIT_NS = 30 * SECOND_NS


ALERTED = {
    "checkpoint_failing": "checkpoint",
    "host_excluded": "host",
    "log_damaged": "fact",
    "task_failed": "task failed",
    "worker_lost_again": "worker",
}
"""The problems of the state that alerts of a rule are about."""


def attention(state: Cluster, now_ns: int) -> list[Attention]:
    """The problems of the cluster, errors before warnings, at most `MAX_ITEMS`."""
    alerted = Alerted(state)
    found = [
        *_alerts(state),
        *_lost_facts(state, alerted),
        *_tasks(state, now_ns, alerted),
        *_hosts(state, alerted),
        *(
            item
            for task in state.tasks.values()
            if not task.ended
            for item in (
                *_workers(state, task, alerted),
                *_barriers(task, now_ns),
                *_checkpoints(task, alerted),
            )
        ),
    ]
    found.sort(key=lambda item: item.severity != "error")
    return found[:MAX_ITEMS]


class Alerted:
    """The problems that open alerts are about."""

    def __init__(self, state: Cluster) -> None:
        self._found = {
            (ALERTED[alert.rule], alert.subject)
            for alert in state.alerts.values()
            if alert.open and alert.rule in ALERTED
        }

    def has(self, problem: str, subject: str) -> bool:
        """Whether an alert says this already."""
        return (problem, subject) in self._found


def _alerts(state: Cluster) -> Iterator[Attention]:
    """The open alerts, without those that only inform."""
    for alert in state.alerts.values():
        if alert.open and alert.severity != "info":
            yield Attention(
                severity=alert.severity,
                subject=alert.subject,
                text=alert.text,
                hint=f"strata why alert alert={alert.id}",
                alert=alert.id,
            )


def _lost_facts(state: Cluster, alerted: Alerted) -> Iterator[Attention]:
    """Lost parts of the log; shown for ever, because they stay lost."""
    for salvage in state.salvages:
        if alerted.has("fact", f"fact:@{salvage.position}"):
            continue
        named = ", ".join(f"@{first} to @{stop - 1}" for first, stop in salvage.lost[:NAMES_SHOWN])
        more = len(salvage.lost) - NAMES_SHOWN
        if named or salvage.lost_batches:
            what = f"facts {named}" + (f" and {more} more ranges" if more > 0 else "")
            yield Attention(
                severity="warning",
                subject=f"fact:@{salvage.position}",
                text=f"the log was damaged: {what if named else 'events of workers'} lost; "
                f"the state continued from position {salvage.base}",
                hint="strata why trust lists what cannot be proven",
            )


def _tasks(state: Cluster, now_ns: int, alerted: Alerted) -> Iterator[Attention]:
    queue = Queue(state)
    for task in state.tasks.values():
        if task.state == "failed" and now_ns - task.ended_ns < RECENT_FAILURE_NS:
            if alerted.has("task failed", f"task:{task.id}"):
                continue
            yield Attention(
                severity="error",
                subject=f"task:{task.id}",
                text=f"{task.id} failed: {task.reason}",
                hint=f"strata logs --task {task.id}",
            )
        elif task.storage_wait is not None and task.storage_wait.workers and not task.ended:
            waited_s = (now_ns - task.storage_wait.since_ns) // SECOND_NS
            yield Attention(
                severity="error",
                subject=f"task:{task.id}",
                text=f"{task.id} has waited {waited_s} s for storage: {task.storage_wait.reason}",
                hint="make the checkpoint storage reachable; the task then continues by itself",
            )
        elif (waits_for := queue.waiting_for(task)) and (hint := _remedy(state, task)):
            yield Attention(
                severity="warning",
                subject=f"task:{task.id}",
                text=f"{task.id} waits: {waits_for}",
                hint=hint,
            )


def _remedy(state: Cluster, task: Task) -> str:
    """What ends the wait of a task; empty if it only waits for other tasks to complete."""
    if task.spec.external:
        return "start its script with COORDINATOR_ADDR=HOST:PORT set"
    if task.state == "queued" and unfinished_before(state, task):
        return f"strata stop {task.id}" if stuck_behind(state, task) else ""
    return "strata agent --slots N offers slots on a host"


def _hosts(state: Cluster, alerted: Alerted) -> Iterator[Attention]:
    for agent in state.agents.values():
        if not agent.up:
            yield Attention(
                severity="warning",
                subject=f"agent:{agent.id}",
                text=f"host {agent.hostname or agent.id} is unreachable: {agent.reason}",
                hint=f"start strata agent on that host again: {agent.slots} slots are missing",
            )

    for host in state.hosts.values():
        if host.excluded and not alerted.has("host", f"host:{host.id}"):
            yield Attention(
                severity="warning",
                subject=f"host:{host.id}",
                text=f"host {host.id} is excluded: {host.excluded}",
                hint=f"when it is repaired: strata hosts include {host.id}",
            )
        for each in host.excluded_gpus.values():
            subject = f"host:{host.id} GPU {each.gpu.index}"
            if not alerted.has("host", subject):
                yield Attention(
                    severity="warning",
                    subject=subject,
                    text=f"GPU {each.gpu.index} of host {host.id} is excluded: {each.reason}",
                    hint=f"when it is repaired: strata hosts include {host.id} "
                    f"--gpu {each.gpu.index}",
                )


def _workers(state: Cluster, task: Task, alerted: Alerted) -> Iterator[Attention]:
    concerned = dict.fromkeys([*task.members, *task.waiting, *task.placements])
    for name in concerned:
        worker = state.workers.get(name)
        if worker is None or alerted.has("worker", f"worker:{name}"):
            continue
        if worker.state in ("lost", "error"):
            word = "is lost" if worker.state == "lost" else "reports an error"
            yield Attention(
                severity="error",
                subject=f"worker:{worker.id}",
                text=f"{worker.id} {word}: {worker.reason or 'no reason given'}",
                hint=f"strata logs --worker {worker.id}",
            )


def _barriers(task: Task, now_ns: int) -> Iterator[Attention]:
    for met in task.barriers.values():
        waited_ns = now_ns - met.opened_ns
        if met.state == "waiting" and waited_ns > LONG_WAIT_NS:
            missing = missing_workers(task, met)
            names = ", ".join(missing[:NAMES_SHOWN])
            more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
            yield Attention(
                severity="warning",
                subject=f"barrier:{task.id}/{met.name}",
                text=f"barrier {met.name} of {task.id} has waited {waited_ns // SECOND_NS} s "
                f"for {names}{more}",
                hint="strata barriers lists the missing workers",
            )


def _checkpoints(task: Task, alerted: Alerted) -> Iterator[Attention]:
    """The newest checkpoint, if it failed; after older failures a later save succeeded."""
    for saved in islice(reversed(task.checkpoints.values()), 1):
        if saved.state == "failed" and not alerted.has("checkpoint", f"task:{task.id}"):
            yield Attention(
                severity="warning",
                subject=f"checkpoint:{saved.id}",
                text=f"checkpoint {saved.id} of {task.id} failed: {saved.reason}",
                hint=f"POST /api/tasks/{task.id}/checkpoint requests another one",
            )
