"""The settings that the rules depend on, with their defaults.

`strata.config` takes its defaults from here, so each of them has one source.
"""

from msgspec import Struct

HEARTBEAT_INTERVAL_S = 5.0
KEEP_COUNT = 5
MAX_RESTARTS = 3
SHUFFLE_SEED = 42


class Rules(Struct, frozen=True):
    """Settings that decisions depend on; they are recorded, so that a replay decides the same.

    A task may keep more than `max_checkpoints`, which is recorded. `max_media_bytes` is for the
    images, texts and histograms of one task. A host is excluded when `exclude_after_tasks` (0:
    never) different tasks failed there within `exclude_window_s` whose scripts failed nowhere else,
    and with `exclude_on_gpu_faults` when one of its GPUs has a fault.
    """

    max_workers: int = 10_000
    max_tasks: int = 10_000
    max_datasets: int = 10_000
    keep_count: int = KEEP_COUNT
    continue_ended: bool = False
    max_checkpoints: int = 1_000
    max_media_bytes: int = 2**30
    exclude_after_tasks: int = 3
    exclude_window_s: float = 86_400.0
    exclude_on_gpu_faults: bool = True


class Timeouts(Struct, frozen=True):
    """Deadlines of the liveness watch, in seconds."""

    heartbeat_timeout_s: float = 30.0
    connection_grace_s: float = 1.5
    reattach_grace_s: float = 30.0
    barrier_timeout_s: float = 300.0
    storage_timeout_s: float = 1800.0
    hang_floor_s: float = 60.0
    hang_factor: float = 10.0
    hang_unlearned_s: float = 900.0
    hang_report_s: float = 5.0
    commit_interval_s: float = 1.0


DEFAULT_RULES = Rules()
DEFAULT_TIMEOUTS = Timeouts()
