"""JSON structures of the REST API's request bodies."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from strata.coordinator.rest.response_models import ModelState, Policy
from strata.core.tasks.placement import MAX_AFTER, MAX_PRIORITY
from strata.core.tasks.task_lifecycle import TaskType
from strata.core.tasks.workdirs import MAX_FILES, WorkdirFile

# Integers that JavaScript represents exactly.
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Text = Annotated[str, Meta(max_length=4096)]
Digest = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class RegisterDatasetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A dataset to register; repeating the same registration changes nothing.

    With a `path` and no `total_samples` the coordinator reads the data to count the samples. An
    answer of GET /api/datasets can be posted: `id` is another name of `dataset_id`, `shard_count`
    is compared with the sizes, and `registered_at` is ignored.
    """

    dataset_id: Annotated[str, Meta(max_length=200)] = ""
    id: Annotated[str, Meta(max_length=200)] = ""
    total_samples: Count = 0
    shard_size: Count = 0
    shuffle: bool = True
    seed: Seed = 42
    name: Annotated[str, Meta(max_length=200)] = ""
    path: Text = ""
    format: Annotated[str, Meta(max_length=200)] = ""
    fingerprint: Annotated[str, Meta(max_length=200)] = ""
    metadata: dict[str, str] = field(default_factory=dict)
    shard_count: Count | None = None
    registered_at: Count = 0


class CreateTaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A task to start. Without an `entry` it waits for workers that the user starts.

    `policy` is the reaction to a lost worker: by default a worker that Strata started is replaced,
    and the others continue without a worker that the user started. Meanwhile the task trains with
    at least `min_workers` workers; 0 leaves that to the policy. An `elastic` task starts with
    `min_workers` workers, takes free slots up to `worker_count`, and gives them back. If no
    checkpoint can be restored, the task fails, unless `allow_fresh_start` lets it train again from
    step 0.

    Kept are the newest `keep_count` checkpoints (0: the coordinator's setting), the first at or
    after each multiple of `keep_every` steps (0: none), and the `keep_best_count` best by the
    metric `keep_best`: its lowest value, or with `max:NAME` its highest.

    Of the tasks that wait for slots, those of a higher `priority` start first. The task waits until
    the tasks in `after` have completed. Only a `preemptible` task may be stopped to make room for
    one of a higher priority; it saves, and continues by itself when there are slots.

    `epochs` or `max_steps` replaces the number in the script's loop over `run.epochs`; 0 leaves it.

    `workdir` is the digest of a folder that was sent (POST /api/workdirs): the workers run in a
    copy of it, and `entry` is relative to it. Without one, `entry` is a path on the agents' hosts.

    With `self_test` each host is tested before the first worker of the task starts there, in at
    most 10 s; what fails is excluded, and the worker is placed elsewhere.
    """

    name: Name
    type: TaskType = "training"
    dataset_id: Annotated[str, Meta(max_length=200)] = ""
    worker_count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    config: dict[str, Any] = field(default_factory=dict)
    entry: Text = ""
    args: Annotated[list[Text], Meta(max_length=1000)] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    policy: Policy | None = None
    min_workers: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    elastic: bool = False
    spares: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    model_state: ModelState = "replicated"
    keep_count: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    keep_every: Count = 0
    keep_best: Annotated[str, Meta(max_length=200)] = ""
    keep_best_count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    max_restarts: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    allow_fresh_start: bool = False
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    after: Annotated[list[Name], Meta(max_length=MAX_AFTER)] = field(default_factory=list)
    preemptible: bool = False
    epochs: Count = 0
    max_steps: Count = 0
    workdir: Digest = ""
    self_test: bool = False


class AnnounceWorkdirRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a folder, ordered by their paths; see docs/COMMAND_LINE.md."""

    files: Annotated[list[WorkdirFile], Meta(max_length=MAX_FILES)]


class AddPiecesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Pieces of the files of a folder, each in Base64."""

    pieces: Annotated[list[bytes], Meta(max_length=MAX_FILES)]


class ContinueTaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an ended task that change when it continues; those left out stay.

    `config` replaces only the entries that it names, and `env` has the values of all environment
    variables, which are deleted when a task ends. A `worker_count` without `elastic` is fixed, also
    if the task was elastic. `epochs` or `max_steps` is how long the script's loop over `run.epochs`
    is in all; 0 leaves it to the script, and one replaces the other. With `dry_run` nothing is
    changed: the response shows the step and the changes.
    """

    worker_count: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    elastic: bool | None = None
    config: dict[str, Any] = field(default_factory=dict)
    entry: Text | None = None
    args: Annotated[list[Text], Meta(max_length=1000)] | None = None
    env: dict[str, str] = field(default_factory=dict)
    policy: Policy | None = None
    min_workers: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    spares: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    keep_count: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    keep_every: Count | None = None
    keep_best: Annotated[str, Meta(max_length=200)] | None = None
    keep_best_count: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    max_restarts: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    allow_fresh_start: bool | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    preemptible: bool | None = None
    epochs: Count | None = None
    max_steps: Count | None = None
    workdir: Digest | None = None
    self_test: bool | None = None
    dry_run: bool = False


class ForkTaskRequest(ContinueTaskRequest, frozen=True, forbid_unknown_fields=True):
    """Parameters of a fork that differ from those of the task; others are the same.

    `step` is that of the checkpoint to fork at; null: the newest checkpoint.
    """

    step: Annotated[int, Meta(ge=0)] | None = None
    name: Name | None = None


class PinCheckpointRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a checkpoint is pinned; the note is shown in lists."""

    note: Annotated[str, Meta(max_length=200)] = ""


class ResizeTaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The new number of workers. With `min_workers` the task becomes elastic: it has at least that
    many workers, and up to `worker_count` as slots are free."""

    worker_count: int
    min_workers: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class RestartTaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Values of the task's environment variables, which are deleted when a task ends."""

    env: dict[str, str] = field(default_factory=dict)
