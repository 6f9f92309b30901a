"""What a user submits as a task, and what a script may change of it."""

from typing import Literal, TypeAlias

from msgspec import Struct, field, structs

from strata.core.rule_settings import KEEP_COUNT, MAX_RESTARTS

Policy: TypeAlias = Literal["continue", "replace", "stop"]
ModelState: TypeAlias = Literal["replicated", "sharded"]


class Retention(Struct, frozen=True, kw_only=True):
    """Which checkpoints are kept: the newest `keep_count`, the first at or after each multiple of
    `keep_every` steps (0: none), and the `keep_best_count` best by the metric `keep_best`.

    The metric's lowest value is the best one; with `max:` before its name, the highest.
    """

    keep_count: int
    keep_every: int = 0
    keep_best: str = ""
    keep_best_count: int = 1


class RetentionRequest(Struct, frozen=True):
    """The part of a task's retention that a script sets; None leaves a field as it is."""

    keep_count: int | None = None
    keep_every: int | None = None
    keep_best: str | None = None
    keep_best_count: int | None = None

    def over(self, present: Retention) -> Retention:
        """The retention with the fields of this request."""
        asked = {name: value for name, value in structs.asdict(self).items() if value is not None}
        return structs.replace(present, **asked)


class TaskSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the user submitted.

    A `replicated` model survives on any worker, a `sharded` one only on all of them together. The
    fields that begin with `keep` are those of `Retention`.

    Workers of a task that `syncs` enter each generation and agree where to resume; other workers
    only use barriers, shards and checkpoints. `config` is a JSON object as text, for the script.
    Values of environment variables may be secret, so facts hold their names and a key under which
    the coordinator keeps the values.

    `spares` are workers beyond those that train: they join and wait, and one of them replaces a
    lost worker at once. After its start a task trains with at least `min_workers` while lost
    workers are replaced; 0 means all workers, or one with the policy `continue`. An `elastic` task
    starts with `min_workers` workers, takes free slots up to `worker_count`, and gives them back
    to queued tasks.

    `epochs` or `max_steps` replaces the number in the script's loop over `run.epochs`; 0 leaves it.

    `workdir` is the digest of the folder that the workers run in (`core/tasks/workdirs`); then the
    `entry` is relative to it. Without one they run in the submitter's folder, by its path.

    `allow_fresh_start` lets the task train again from step 0 if none of its checkpoints can be
    restored and no worker holds a model. Without it such a task fails.

    Queued tasks of a higher `priority` are placed first. The task waits until the tasks that it
    comes `after` have completed. Only a `preemptible` task may be stopped to make room for one of a
    higher priority (`core/tasks/preemption`).

    With `self_test` each host is tested before the first worker of the task starts there.
    """

    name: str
    type: str = "training"
    dataset_id: str = ""
    worker_count: int = 1
    min_workers: int = 0
    policy: Policy = "replace"
    model_state: ModelState = "replicated"
    keep_count: int = KEEP_COUNT
    keep_every: int = 0
    keep_best: str = ""
    keep_best_count: int = 1
    max_restarts: int = MAX_RESTARTS
    entry: str = ""
    args: list[str] = field(default_factory=list)
    config: str = "{}"
    env_names: list[str] = field(default_factory=list)
    env_key: str = ""
    external: bool = False
    syncs: bool = True
    spares: int = 0
    allow_fresh_start: bool = False
    priority: int = 0
    after: list[str] = field(default_factory=list)
    preemptible: bool = False
    elastic: bool = False
    epochs: int = 0
    max_steps: int = 0
    workdir: str = ""
    self_test: bool = False

    @property
    def slots(self) -> int:
        """The most processes that the task has, spares included."""
        return self.worker_count + self.spares

    @property
    def retention(self) -> Retention:
        """Which checkpoints are kept, unless the script says otherwise."""
        return Retention(
            keep_count=self.keep_count,
            keep_every=self.keep_every,
            keep_best=self.keep_best,
            keep_best_count=self.keep_best_count,
        )

    @property
    def starting_slots(self) -> int:
        """How many processes the task starts with, spares included."""
        return self.min_workers if self.elastic else self.slots
