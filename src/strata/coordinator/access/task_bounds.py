"""Keeps the holder of a task's token to that task: a request may not name another one."""

from typing import Any

from strata.coordinator.access.keyring import Identity
from strata.core.state import Cluster
from strata.errors import PermissionDenied
from strata.wire.v1 import coordinator_pb2 as pb


def bind(identity: object, request: Any, state: Cluster) -> Any:
    """The request, which a worker's token may only make for its own task.

    A registration without a task gets the task of the token. Every other request names the task
    itself, or a worker, which must be registered for it.
    """
    if not isinstance(identity, Identity) or not identity.task:
        return request
    task = getattr(request, "task_id", "")
    if task and task != identity.task:
        raise foreign(identity, f"task {task!r}")
    worker = state.workers.get(getattr(request, "worker_id", ""))
    if worker is not None and worker.task != identity.task:
        raise foreign(identity, f"worker {worker.id!r} of task {worker.task!r}")
    if isinstance(request, pb.RegisterWorkerRequest):
        for other in state.tasks.values():
            if other.id != identity.task and request.worker_id in other.placements:
                raise foreign(identity, f"worker {request.worker_id!r} of task {other.id!r}")
        request.task_id = identity.task
    return request


def foreign(identity: Identity, what: str) -> PermissionDenied:
    """The error for a request about another task."""
    return PermissionDenied(
        f"{identity.name} is only for task {identity.task!r}, not for {what[:200]}",
        hint="omit the task, or use a token that is not bound to one",
    )
