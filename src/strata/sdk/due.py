"""When to save: by steps, by time, on SIGTERM or a stop, on request, or as losses make it worth it.

A checkpoint is of one step, so all ranks must come to the same answer. By steps they do by
themselves. Everything else becomes a request to the coordinator, which sets a step that lies ahead
of everyone (see `core.save_points`); until it has, a rank trains at most one step more.

The adaptive interval is Young's: the square root of twice the cost of a save times the mean time
between losses, both as measured; every change of membership counts as a loss. It is never shorter
than twice what a save takes.
"""

import math
import time
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.core.save_points import LEAD_STEPS
from strata.errors import SettingError, StrataError
from strata.sdk.membership import Membership
from strata.sdk.session import Session
from strata.wire.v1 import coordinator_pb2 as pb

HOLD_PATIENCE_S = 5.0
FINAL_PATIENCE_S = 25.0
PRIOR_S = 3600.0
"""What the time between losses is taken for until it is known better."""


class Policy(Struct, frozen=True):
    """When to save without being asked; 0 and None are never."""

    checkpoint_every: int = 0
    checkpoint_interval_s: float | None = None
    checkpoint_adaptive: bool = False


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
    """Knows whether a save is due. `told` belongs to the session's thread, the rest to training."""

    def __init__(self, membership: Membership, session: Session) -> None:
        self.policy = Policy()
        self.stopping: Callable[[], str] = str
        self.active = False
        self.request = 0
        self._membership = membership
        self._session = session
        self._noted = (0, 0)
        self._hold = -1
        self._save_at = 0
        self._last_step = 0
        self._settled = (0, 0)
        self._asked = False
        self._stop_seen_s = 0.0
        self._final = False
        self._began_s = self._last_s = time.monotonic()
        self._first_generation = 0
        self._cost_s = self._total_s = 0.0

    def told(self, standing: pb.Standing) -> None:
        """Notes a request, before it is echoed, and the step that was agreed upon."""
        self._save_at = standing.save_at
        noted = (standing.checkpoint_requests, standing.generation)
        if not standing.checkpoint_requests:
            self._hold = -1
        elif noted != self._noted:
            self._hold = self._membership.steps + LEAD_STEPS
        self._noted = noted
        self.request = standing.checkpoint_requests

    def begin(self, step: int) -> None:
        """From here on intervals count: a state was restored."""
        self.active = True
        self._last_step, self._last_s = step, time.monotonic()
        self._first_generation = self._first_generation or self._membership.place.generation

    def now(self, step: int) -> bool:
        """Whether to save at this step; the same for every rank that asks at the same steps."""
        self.active = True
        self._ask_if_wanted()
        self._wait_for_step(step)
        every = self.policy.checkpoint_every
        by_steps = bool(every) and step // every > self._last_step // every
        return by_steps or self._agreed(step)

    def saved(self, step: int, stall_s: float) -> None:
        """A save was begun."""
        if self._agreed(step):
            self._settled = (self._membership.place.generation, self._save_at)
            self._final = self._final or bool(self._stop_seen_s)
        self._cost_s = stall_s
        self._last_step, self._last_s, self._asked = step, time.monotonic(), False

    def took(self, total_s: float) -> None:
        """A save was committed after so long."""
        self._total_s = total_s

    @property
    def finishing(self) -> bool:
        """Whether the loop should go on although a stop was asked for: a last save is to come."""
        if not self.active or not self.stopping() or self._final:
            return False
        self._stop_seen_s = self._stop_seen_s or time.monotonic()
        return time.monotonic() - self._stop_seen_s < FINAL_PATIENCE_S

    def _agreed(self, step: int) -> bool:
        agreed = (self._membership.place.generation, self._save_at)
        return 0 < self._save_at <= step and self._settled != agreed

    def _ask_if_wanted(self) -> None:
        """Asks for a save that cannot be told from the step alone, once."""
        reason = self._reason()
        if reason and not self._asked:
            self._asked = True
            self._session.ask("request_save", pb.RequestSave(reason=reason))

    def _reason(self) -> str:
        if self.finishing:
            return self.stopping()
        interval_s = self.interval_s
        if interval_s is None or self._membership.place.rank != 0:
            return ""
        passed_s = time.monotonic() - self._last_s
        return f"{passed_s:.0f} s have passed" if passed_s >= interval_s else ""

    @property
    def interval_s(self) -> float | None:
        """After how long a save is due by time."""
        if not self.policy.checkpoint_adaptive:
            return self.policy.checkpoint_interval_s
        losses = max(self._membership.place.generation - self._first_generation, 0)
        between_s = (time.monotonic() - self._began_s + PRIOR_S) / (losses + 1)
        return max(math.sqrt(2 * max(self._cost_s, 0.01) * between_s), 2 * self._total_s, 1.0)

    def _wait_for_step(self, step: int) -> None:
        """Holds on where the promise ends, until the step is known; as a rule it is already."""
        if self._hold < 0 or step < self._hold:
            return
        try:
            self._session.wait_for(
                lambda: self._hold < 0 or self._membership.changed, HOLD_PATIENCE_S
            )
        except StrataError:
            return  # the session is over, which the next call to it will say
        finally:
            self._hold = -1
