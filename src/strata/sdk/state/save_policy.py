"""When to save: by steps, by time, on SIGTERM or a stop, on request, or adaptively.

A checkpoint belongs to one step, so all ranks must decide alike. By steps they do so without a
message. Every other save is a request to the coordinator, which schedules a future step for all
ranks (see `core/checkpoints/save_schedule`). A save that is due while the previous one is running
is postponed: the coordinator is told, and one common save follows when no rank is busy.
`checkpoint_when_busy = "wait"` makes training wait for the previous save instead.

Nothing here waits for the coordinator. While it is unreachable, messages are queued and training
continues. If a scheduled step is already past when this rank learns of it, the rank reports it as
missed; that checkpoint fails for all ranks, and a later step is scheduled.

The adaptive interval is Young's: the square root of twice the cost of a save times the mean time
between losses, both measured; every membership change counts as a loss. It is at least twice the
duration of a save. The first save is due after `FIRST_SAVE_S`: it measures the cost.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping

import msgspec
from google.protobuf.message import Message
from msgspec import Struct

from strata.config import Settings
from strata.errors import SettingError, StrataError
from strata.sdk.session.membership import Membership
from strata.sdk.session.worker_session import WorkerSession
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

FIRST_SAVE_S = 5.0
FINAL_SAVE_TIMEOUT_S = 25.0
WARN_EVERY_S = 60.0
LEAST_COST_S = 0.01
PRIOR_S = 3600.0
"""The assumed time between losses before any was measured."""


class SavePolicy(Struct, frozen=True):
    """When to save automatically; 0 and None mean never.

    The adaptive interval is used if neither steps nor seconds are set.
    """

    checkpoint_every: int = 0
    checkpoint_interval_s: float | None = None
    checkpoint_adaptive: bool = False

    @property
    def adaptive(self) -> bool:
        """Whether the interval is computed from measurements."""
        fixed = self.checkpoint_every or self.checkpoint_interval_s is not None
        return self.checkpoint_adaptive and not fixed

    @property
    def active(self) -> bool:
        """Whether automatic saves are on."""
        return (
            bool(self.checkpoint_every) or self.checkpoint_interval_s is not None or self.adaptive
        )


class SaveRequest(Struct, frozen=True):
    """A running save: its step, and its start on the monotonic clock."""

    step: int
    since_s: float


def policy_of(
    settings: Settings,
    config: Mapping[str, object],
    every: int | None = None,
    interval_s: float | None = None,
) -> SavePolicy:
    """The policy of the script, else of the task's config, else of this process's settings."""
    names = SavePolicy.__struct_fields__
    values = {name: getattr(settings, name) for name in names}
    values |= {name: config[name] for name in names if name in config}
    asked = {"checkpoint_every": every, "checkpoint_interval_s": interval_s}
    values |= {name: value for name, value in asked.items() if value is not None}
    try:
        return msgspec.convert(values, SavePolicy)
    except msgspec.ValidationError as error:
        raise SettingError(
            f"the task's config has an invalid checkpoint interval: {error}",
            hint="set a number of steps or seconds",
        ) from error


class SaveSchedule:
    """Decides whether a save is due. `apply_standing` and `request` are for any thread.

    `under_way` returns the running save, if any. `waits` means that training waits for it. `cost_s`
    is the time for which the last save blocked training. `even` is False if workers train at their
    own pace and end at different steps: then only explicitly set intervals are used.
    """

    def __init__(self, membership: Membership, session: WorkerSession) -> None:
        self.policy = SavePolicy()
        self.stopping: Callable[[], str] = str
        self.under_way: Callable[[], SaveRequest | None] = lambda: None
        self.waits = False
        self.even = True
        self.active = False
        self.postponed = False
        self._membership = membership
        self._session = session
        self._request = 0
        self._scheduled = self._settled = (0, 0)
        self._last_step = self._common_step = 0
        self._saves = 0
        self._asked = False
        self._stop_seen_s = 0.0
        self._final = False
        self._began_s = self._last_s = time.monotonic()
        self._warn_at_s = 0.0
        self._first_generation = 0
        self.cost_s = self._total_s = 0.0

    def apply_standing(self, standing: pb.Standing) -> None:
        """Note the open request and the scheduled step. For the session's thread."""
        self._request = standing.checkpoint_requests
        self._scheduled = (standing.generation, standing.save_at)

    @property
    def request(self) -> int:
        """The open request, as repeated by the heartbeat; 0 while a save is running."""
        busy = self.under_way() is not None and not self.waits
        return 0 if busy else self._request

    def begin(self, step: int) -> None:
        """Start the intervals: a state was restored."""
        self.active = True
        self.postponed = self._asked = False
        self._last_step, self._last_s = step, time.monotonic()
        self._first_generation = self._first_generation or self._membership.place.generation

    def now(self, step: int) -> bool:
        """Whether to save at this step; every rank asks after every step. Never blocks."""
        self.active = True
        self._ask_if_wanted(step)
        scheduled = self._scheduled_step()
        if scheduled and step >= scheduled:
            return self._take_up(step, scheduled)
        every = self.policy.checkpoint_every
        if not every or step // every <= self._last_step // every:
            return False
        if scheduled or self._request or self.postponed:
            if not self.postponed:
                self._postpone(step, "a common save of all workers is scheduled")
            return False
        return self._free(step)

    def saved(self, step: int, stall_s: float) -> None:
        """Note that a save was started."""
        if step == self._common_step:
            self._final = self._final or bool(self._stop_seen_s)
        self._saves += 1
        self.cost_s = stall_s
        self.postponed = self._asked = False
        self._last_step, self._last_s = step, time.monotonic()

    def took(self, total_s: float) -> None:
        """Note the duration of a committed save. For the saving thread."""
        self._total_s = total_s

    def postpone(self, step: int, busy: SaveRequest) -> None:
        """Postpone the save of this step, because the previous save is still running."""
        busy_s = time.monotonic() - busy.since_s
        reason = f"the save of step {busy.step} has been running for {busy_s:.1f} s"
        self._postpone(step, reason, busy_s=busy_s)
        if time.monotonic() >= self._warn_at_s:
            self._warn_at_s = time.monotonic() + WARN_EVERY_S
            log.warning("the save of step %d is postponed: %s", step, reason)

    @property
    def finishing(self) -> bool:
        """Whether the loop should continue despite a requested stop: a last save is pending."""
        if not self.active or not self.stopping() or self._final:
            return False
        self._stop_seen_s = self._stop_seen_s or time.monotonic()
        return time.monotonic() - self._stop_seen_s < FINAL_SAVE_TIMEOUT_S

    @property
    def interval_s(self) -> float | None:
        """Seconds between saves by time; None for no saves by time."""
        if not self.policy.adaptive:
            return self.policy.checkpoint_interval_s
        if not self.even:
            return None
        if not self._saves:
            return FIRST_SAVE_S
        losses = max(self._membership.place.generation - self._first_generation, 0)
        between_s = (time.monotonic() - self._began_s + PRIOR_S) / (losses + 1)
        return max(
            math.sqrt(2 * max(self.cost_s, LEAST_COST_S) * between_s), 2 * self._total_s, 1.0
        )

    def _scheduled_step(self) -> int:
        """The scheduled step that was not handled yet; 0 if there is none."""
        scheduled = self._scheduled
        current = scheduled[0] == self._membership.place.generation
        return scheduled[1] if current and scheduled != self._settled else 0

    def _take_up(self, step: int, scheduled: int) -> bool:
        """Whether to save for a scheduled step that is now or past."""
        self._settled, self._common_step = (self._membership.place.generation, scheduled), step
        # A single rank need not save at exactly the scheduled step.
        if step == scheduled or self._membership.place.world_size == 1:
            return self._free(step)
        reason = f"it was already at step {step} when it learned of the save of step {scheduled}"
        self._postpone(scheduled, reason, missed=True)
        return False

    def _free(self, step: int) -> bool:
        """Whether a due save can start; otherwise it is postponed."""
        busy = self.under_way()
        if busy is None or self.waits:
            return True
        self.postpone(step, busy)
        return False

    def _ask_if_wanted(self, step: int) -> None:
        """Request, once, a save that does not follow from the step."""
        reason = self._reason()
        if not reason or self._asked or self.postponed:
            return
        self._asked = True
        busy = self.under_way()
        if busy is None or self.waits:
            self._send("request_save", pb.RequestSave(reason=reason))
        else:
            self.postpone(step, busy)

    def _reason(self) -> str:
        if self.finishing:
            return self.stopping()
        interval_s = self.interval_s
        if interval_s is None or self._membership.place.rank != 0:
            return ""
        passed_s = time.monotonic() - self._last_s
        return f"{passed_s:.0f} s have passed" if passed_s >= interval_s else ""

    def _postpone(
        self, step: int, reason: str, *, busy_s: float = 0.0, missed: bool = False
    ) -> None:
        self.postponed = True
        generation = self._membership.place.generation
        self._send(
            "postpone_save",
            pb.PostponeSave(
                generation=generation, step=step, reason=reason, busy_s=busy_s, missed=missed
            ),
        )

    def _send(self, kind: str, message: Message) -> None:
        """Send a message to the coordinator without waiting for the answer."""
        try:
            self._session.ask(kind, message)
        except StrataError as error:
            log.debug("could not send %s: %s", kind, error)
