"""Conversion of the health of a host between its message and the core's structure.

Both have the same fields; a figure that is not set in the message is None.
"""

import math
from typing import Any

from msgspec import structs

from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import ReportHostOfWorker
from strata.errors import InvalidArgument, LimitExceeded
from strata.wire.v1 import coordinator_pb2 as pb

MAX_GPUS = 256
MAX_TEXT = 200


def host_health(message: pb.HostHealth) -> HostHealth:
    """The health in a message; raises if it has figures that no host can have."""
    if len(message.gpus) > MAX_GPUS:
        raise LimitExceeded(
            f"the health of {len(message.gpus)} GPUs", hint=f"send at most {MAX_GPUS} GPUs"
        )
    gpus = [GpuHealth(**{"index": 0} | _fields(gpu)) for gpu in message.gpus]
    return HostHealth(**_fields(message) | {"gpus": gpus})


def host_report(worker: str, incarnation: int, message: pb.HostHealth) -> ReportHostOfWorker:
    """The command of a worker that measured its host."""
    health = host_health(message)
    return ReportHostOfWorker(worker=worker, incarnation=incarnation, health=health)


def host_health_message(health: HostHealth) -> pb.HostHealth:
    """The health of a host as a message."""
    gpus = [pb.GpuHealth(**structs.asdict(gpu)) for gpu in health.gpus]
    return pb.HostHealth(**structs.asdict(health) | {"gpus": gpus})


def _fields(message: pb.HostHealth | pb.GpuHealth) -> dict[str, Any]:
    """The set fields of a message by name."""
    found = {field.name: value for field, value in message.ListFields() if field.name != "gpus"}
    for name, value in found.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise LimitExceeded(
                f"{name} has {len(value)} characters", hint=f"send at most {MAX_TEXT}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidArgument(f"{name} is {value}", hint="leave out what was not measured")
    return found
