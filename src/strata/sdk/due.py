"""When to save: by steps, by time, on SIGTERM or a stop, on request, or as losses make it worth it.

A checkpoint is of one step, so all ranks must come to the same answer. By steps they do without a
message. Everything else is a request to the coordinator, which sets a step that lies ahead of
everyone (see `core.save_points` for the rules). A save that is due while the one before it is under
way is postponed: the coordinator hears of it, and one common save follows as soon as no rank is
busy. `checkpoint_when_busy = "wait"` makes training wait for the earlier save instead.

Nothing here waits for the coordinator. While it is away, messages are queued and training goes on;
a step that was scheduled meanwhile and is past when this rank hears of it is reported as missed,
which fails that checkpoint for everyone and has a later step scheduled.

The adaptive interval is Young's: the square root of twice the cost of a save times the mean time
between losses, both as measured; every change of membership counts as a loss. It is never shorter
than twice what a save takes. The first save comes after `FIRST_SAVE_S`: it measures the cost.
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
from strata.sdk.membership import Membership
from strata.sdk.session import Session
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

FIRST_SAVE_S = 5.0
FINAL_PATIENCE_S = 25.0
WARN_EVERY_S = 60.0
LEAST_COST_S = 0.01
PRIOR_S = 3600.0
"""What the time between losses is taken for until it is known better."""


class Policy(Struct, frozen=True):
    """When to save without being asked; 0 and None are never.

    The adaptive interval is used where neither steps nor seconds are set.
    """

    checkpoint_every: int = 0
    checkpoint_interval_s: float | None = None
    checkpoint_adaptive: bool = False

    @property
    def adaptive(self) -> bool:
        """Whether the interval follows from what is measured."""
        fixed = self.checkpoint_every or self.checkpoint_interval_s is not None
        return self.checkpoint_adaptive and not fixed

    @property
    def active(self) -> bool:
        """Whether anything is saved without being asked."""
        return (
            bool(self.checkpoint_every) or self.checkpoint_interval_s is not None or self.adaptive
        )


class UnderWay(Struct, frozen=True):
    """A save that has not ended: of which step, and since when by the monotonic clock."""

    step: int
    since_s: float


def policy_of(
    settings: Settings,
    config: Mapping[str, object],
    every: int | None = None,
    interval_s: float | None = None,
) -> Policy:
    """The settings of the process; what the task's config says wins, and over both the script."""
    names = Policy.__struct_fields__
    values = {name: getattr(settings, name) for name in names}
    values |= {name: config[name] for name in names if name in config}
    asked = {"checkpoint_every": every, "checkpoint_interval_s": interval_s}
    values |= {name: value for name, value in asked.items() if value is not None}
    try:
        return msgspec.convert(values, Policy)
    except msgspec.ValidationError as error:
        raise SettingError(
            f"the task's config has a wrong value: {error}",
            hint="give a number of steps or seconds",
        ) from error


class Due:
    """Knows whether a save is due. For the training thread, except `told` and `request`.

    `under_way` tells the save that has not ended, if there is one. `waits` means that training
    waits for it. `cost_s` is for how long training stood still in the last save. `even` is False
    where workers train at their own pace, so that they end at different steps: then only what was
    set by name is saved.
    """

    def __init__(self, membership: Membership, session: Session) -> None:
        self.policy = Policy()
        self.stopping: Callable[[], str] = str
        self.under_way: Callable[[], UnderWay | None] = lambda: None
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

    def told(self, standing: pb.Standing) -> None:
        """Notes the open request and the scheduled step. For the session's thread."""
        self._request = standing.checkpoint_requests
        self._scheduled = (standing.generation, standing.save_at)

    @property
    def request(self) -> int:
        """The open request, as the heartbeat repeats it: 0 while a save is under way."""
        busy = self.under_way() is not None and not self.waits
        return 0 if busy else self._request

    def begin(self, step: int) -> None:
        """From here on intervals count: a state was restored."""
        self.active = True
        self.postponed = self._asked = False
        self._last_step, self._last_s = step, time.monotonic()
        self._first_generation = self._first_generation or self._membership.place.generation

    def now(self, step: int) -> bool:
        """Whether to save at this step, which every rank asks after every step; never waits."""
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
                self._postpone(step, "all workers are about to save together")
            return False
        return self._free(step)

    def saved(self, step: int, stall_s: float) -> None:
        """A save was begun."""
        if step == self._common_step:
            self._final = self._final or bool(self._stop_seen_s)
        self._saves += 1
        self.cost_s = stall_s
        self.postponed = self._asked = False
        self._last_step, self._last_s = step, time.monotonic()

    def took(self, total_s: float) -> None:
        """A save was committed after so long. For the thread that saves."""
        self._total_s = total_s

    def postpone(self, step: int, busy: UnderWay) -> None:
        """Does not save this step, because the save before it has not ended."""
        busy_s = time.monotonic() - busy.since_s
        reason = f"the save of step {busy.step} has been under way for {busy_s:.1f} s"
        self._postpone(step, reason, busy_s=busy_s)
        if time.monotonic() >= self._warn_at_s:
            self._warn_at_s = time.monotonic() + WARN_EVERY_S
            log.warning("step %d is saved later: %s", step, reason)

    @property
    def finishing(self) -> bool:
        """Whether the loop should go on although a stop was asked for: a last save is to come."""
        if not self.active or not self.stopping() or self._final:
            return False
        self._stop_seen_s = self._stop_seen_s or time.monotonic()
        return time.monotonic() - self._stop_seen_s < FINAL_PATIENCE_S

    @property
    def interval_s(self) -> float | None:
        """After how long a save is due by time."""
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
        """The step that was scheduled and has not been taken up; 0 if there is none."""
        scheduled = self._scheduled
        current = scheduled[0] == self._membership.place.generation
        return scheduled[1] if current and scheduled != self._settled else 0

    def _take_up(self, step: int, scheduled: int) -> bool:
        """Whether to save where a step was scheduled that is now, or past."""
        self._settled, self._common_step = (self._membership.place.generation, scheduled), step
        # A rank that is alone need not save at the same step as others.
        if step == scheduled or self._membership.place.world_size == 1:
            return self._free(step)
        reason = f"it was at step {step} when it was told to save step {scheduled}"
        self._postpone(scheduled, reason, missed=True)
        return False

    def _free(self, step: int) -> bool:
        """Whether a save that is due can begin; else it is postponed."""
        busy = self.under_way()
        if busy is None or self.waits:
            return True
        self.postpone(step, busy)
        return False

    def _ask_if_wanted(self, step: int) -> None:
        """Asks for a save that cannot be told from the step alone, once."""
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
            log.debug("%s was not sent: %s", kind, error)
