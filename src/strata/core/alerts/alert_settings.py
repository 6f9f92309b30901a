"""The rules by name, and their thresholds with their defaults.

`strata.config` takes its defaults from here, so each of them has one source.
"""

from collections.abc import Iterable

from msgspec import Struct

RULES = {
    "loss_not_finite": "the loss, or a metric with loss in its name, is NaN or infinite",
    "loss_spike": "the loss jumped above everything before it",
    "loss_plateau": "the loss has not fallen in the second half of the run",
    "worker_lost_again": "a worker of a task was lost repeatedly",
    "no_step": "a task makes no step",
    "slow_steps": "a task makes steps much slower than usual",
    "goodput_low": "little of the time of a task's workers was spent on its steps",
    "straggler": "a worker takes much longer for its part of a step than the others",
    "checkpoint_failing": "the last checkpoints of a task failed, or one is damaged",
    "checkpoint_late": "a task has no new checkpoint for much longer than usual",
    "disk_filling": "a disk is nearly full, or will be soon",
    "oom_kill": "the kernel ended a process because memory was used up",
    "task_failed": "a task failed",
    "host_excluded": "a host was excluded because of a fault or after failures",
    "events_dropped": "a worker dropped events, so its record has a hole",
    "log_damaged": "facts or events of workers were lost from the log",
}
"""What each rule alerts to."""


class AlertThresholds(Struct, frozen=True, kw_only=True):
    """Thresholds of the rules; `off` are the rules that are turned off."""

    off: frozenset[str] = frozenset()
    settle_s: float = 60.0
    spike_deviations: float = 6.0
    plateau_steps: int = 2_000
    worker_losses: int = 2
    worker_losses_within_s: float = 3_600.0
    no_step_s: float = 300.0
    slow_share: float = 0.2
    goodput_below: float = 0.3
    goodput_window_s: float = 1_800.0
    straggler_ratio: float = 1.5
    straggler_s: float = 60.0
    checkpoint_failures: int = 2
    checkpoint_late_s: float = 600.0
    disk_free_bytes: int = 2 * 2**30
    disk_full_within_s: float = 3_600.0

    def on(self, rule: str) -> bool:
        """Whether a rule is turned on."""
        return rule not in self.off and "all" not in self.off


DEFAULT_THRESHOLDS = AlertThresholds()


def unknown_rules(names: Iterable[str]) -> list[str]:
    """The names that are no rule."""
    return [name for name in names if name not in RULES and name != "all"]
