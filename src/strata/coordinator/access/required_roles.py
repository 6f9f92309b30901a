"""The role that each gRPC method and each REST endpoint needs.

`admin` may do everything, `submit` may also read. `worker` and `agent` are for processes: they may
use the gRPC methods named here, and no endpoint of the REST API.

REST endpoints that read need `read`; those that change something, and the exceptions, are listed. A
method or endpoint without a line is refused to all but `admin`; a test names it.
"""

from collections.abc import Collection

from strata.coordinator.access.keyring import Identity
from strata.core.state import Role
from strata.errors import PermissionDenied, Unauthenticated

SERVICE = "/strata.v1.Coordinator/"
REFLECTION = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"
EVERY: tuple[Role, ...] = ("read", "submit", "worker", "agent")

GRPC: dict[str, tuple[Role, ...]] = {
    f"{SERVICE}RegisterWorker": ("worker",),
    f"{SERVICE}DeregisterWorker": ("worker",),
    f"{SERVICE}Heartbeat": ("worker",),
    f"{SERVICE}RegisterDataset": ("worker", "submit"),
    f"{SERVICE}GetDataset": ("worker", "read", "submit"),
    f"{SERVICE}GetDataShard": ("worker",),
    f"{SERVICE}GetDataShards": ("worker",),
    f"{SERVICE}AdvanceEpoch": ("worker",),
    f"{SERVICE}NotifyCheckpoint": ("worker",),
    f"{SERVICE}GetLatestCheckpoint": ("worker", "read", "submit"),
    f"{SERVICE}WaitBarrier": ("worker",),
    f"{SERVICE}Session": ("worker",),
    f"{SERVICE}AgentSession": ("agent",),
    f"{SERVICE}ReadWorkdir": ("agent",),
    REFLECTION.format("v1"): EVERY,
    REFLECTION.format("v1alpha"): EVERY,
}
"""Roles besides `admin` that may call a method."""

LEAVING = {f"{SERVICE}{name}" for name in ("Session", "Heartbeat", "DeregisterWorker")}
"""What the workers of an ended task may still call, so that they can leave."""

READS: tuple[Role, ...] = ("read", "submit")
CHANGES: tuple[Role, ...] = ("submit",)
ADMINISTERS: tuple[Role, ...] = ()
TASK = "POST /api/tasks/{task_id}/"
CHECKPOINT = "/api/checkpoints/{checkpoint_id}"

REST: dict[str, tuple[Role, ...]] = {
    "POST /api/tasks": CHANGES,
    f"{TASK}stop": CHANGES,
    f"{TASK}continue": CHANGES,
    f"{TASK}fork": CHANGES,
    f"{TASK}restart": CHANGES,
    f"{TASK}resize": CHANGES,
    f"{TASK}checkpoint": CHANGES,
    f"{TASK}stacks": CHANGES,
    "POST /api/datasets": CHANGES,
    "POST /api/workdirs": CHANGES,
    "POST /api/workdirs/{digest}/pieces": CHANGES,
    f"POST {CHECKPOINT}/verify": CHANGES,
    f"POST {CHECKPOINT}/pin": CHANGES,
    f"DELETE {CHECKPOINT}/pin": CHANGES,
    f"DELETE {CHECKPOINT}": CHANGES,
    "POST /api/alerts/test": ADMINISTERS,
    "POST /api/agents/{agent_id}/lost": ADMINISTERS,
    "POST /api/hosts/{host_id}/exclude": ADMINISTERS,
    "POST /api/hosts/{host_id}/include": ADMINISTERS,
    "POST /api/hosts/{host_id}/gpus/{gpu}/exclude": ADMINISTERS,
    "POST /api/hosts/{host_id}/gpus/{gpu}/include": ADMINISTERS,
    "GET /api/tokens": ADMINISTERS,
    "POST /api/tokens": ADMINISTERS,
    "POST /api/tokens/{name}/revoke": ADMINISTERS,
}
"""Roles besides `admin` that may use an endpoint; others that read need `read`."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def rest_roles(method: str, template: str) -> tuple[Role, ...]:
    """The roles besides `admin` that may use an endpoint."""
    method = "GET" if method in SAFE_METHODS else method
    listed = REST.get(f"{method} {template}")
    return listed if listed is not None else READS if method == "GET" else ADMINISTERS


def require_role(identity: Identity, roles: Collection[Role], what: str) -> None:
    """Refuse a sender that has none of the roles."""
    if identity.role == "admin" or identity.role in roles:
        return
    needed = " or ".join([*roles, "admin"])
    raise PermissionDenied(
        f"{identity.name} has the role {identity.role}; {what} needs the role {needed}",
        hint="use a token with that role; an administrator makes one: strata token make",
    )


def require_method(identity: Identity, path: str) -> None:
    """Refuse a sender that may not call this gRPC method."""
    require_role(identity, GRPC.get(path, ()), path.rpartition("/")[2])
    if identity.ended and path not in LEAVING:
        raise Unauthenticated(
            f"task {identity.task!r} has ended, and with it {identity.name}",
            hint="continue the task: its workers get a valid token",
        )
