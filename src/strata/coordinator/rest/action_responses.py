"""Responses of the REST API to requests that change something."""

from msgspec import Struct

from strata.coordinator.rest.response_models import TaskState
from strata.core.tasks.workdirs import WorkdirFile


class PinResponse(Struct, frozen=True):
    """The rules that keep a checkpoint now; none if it was deleted."""

    id: str
    task_id: str
    kept_because: list[str]


class ParameterChange(Struct, frozen=True):
    """A parameter of a task before and after it was continued; empty text: not set."""

    name: str
    before: str
    after: str


class ContinueTaskResponse(Struct, frozen=True):
    """The task or its fork, the step at which it continues, and the parameters that changed."""

    task_id: str
    status: TaskState
    step: int
    changes: list[ParameterChange]


class CreateTaskResponse(Struct, frozen=True):
    """The id of the new task."""

    task_id: str
    status: TaskState


class StopTaskResponse(Struct, frozen=True):
    """`success`: the task is stopping or stopped; false if it ended by itself."""

    success: bool
    task_id: str
    status: TaskState


class ResizeTaskResponse(Struct, frozen=True):
    """Workers that were wanted before and are wanted now; `placed` of them are here or have a slot,
    `waiting` are missing, and `waiting_for` says what the task waits for.

    `changed` is false if the task had this number already. A task with `min_workers` is elastic.
    """

    task_id: str
    before: int
    after: int
    placed: int
    waiting: int
    waiting_for: str
    changed: bool
    min_workers: int


class CollectStacksResponse(Struct, frozen=True):
    """Number of the collection and of the asked workers; `open` while reports are awaited."""

    collection: int
    task_id: str
    workers: int
    open: bool


class CheckpointRequestResponse(Struct, frozen=True):
    """Number of the request; the workers save at their next step."""

    request: int
    task_id: str


class AnnounceWorkdirResponse(Struct, frozen=True):
    """The digest of a folder, and the digests of the pieces that are not stored yet."""

    digest: str
    missing: list[str]


class PiecesResponse(Struct, frozen=True):
    """The number of pieces that were stored."""

    stored: int


class WorkdirResponse(Struct, frozen=True):
    """The files of a folder."""

    digest: str
    size_bytes: int
    files: list[WorkdirFile]
