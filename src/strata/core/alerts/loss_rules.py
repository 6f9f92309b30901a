"""Rules on the loss: not finite, spike, plateau.

Each is about a task. A NaN or infinity is looked for in the loss and in every metric with "loss" in
its name, of all workers. It ends when the last `FINITE_AGAIN` values that rank 0 logged of each
such metric are finite, or with the task. Spike and plateau follow the loss of one worker of the
task, rank 0, in the order of steps; what a rollback undid is forgotten.

*Spike.* The last `SPIKE_STEPS` losses are each above every loss of the window, and above its median
by `spike_deviations` standard deviations. The window is the `WINDOW` losses before these, at least
`LEAST`; the deviation is 1.4826 times the median absolute deviation, and at least `LEAST_SPREAD` of
the median and `LEAST_DEVIATION`. If the losses were independent draws of any one distribution,
three in a row would be above the 200 before them once in 1.4 million steps, so noise alone rarely
raises it, and one bad batch never does. It ends when as many losses in a row are below the limit
again, or when the loss has stayed at the new level for `WINDOW` steps.

*Plateau.* The losses of the run so far are kept as medians of equal blocks of steps. The median of
the last eighth of the run is compared with that of the eighth before its middle. It is a plateau if
the loss fell by less than `PLATEAU_SHARE` between them even if the difference is larger by three
standard errors, which are estimated from the spread of the blocks. So a loss that is too noisy to
tell is no plateau, and one that falls with the logarithm of the steps is none at any length.
Nothing is compared before `plateau_steps` losses.
"""

import math
from collections import deque
from statistics import median

from msgspec import Struct

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.state import Alert

NOT_FINITE = "loss_not_finite"
SPIKE = "loss_spike"
PLATEAU = "loss_plateau"

WINDOW = 200
LEAST = 50
SPIKE_STEPS = 3
LEAST_SPREAD = 0.01
LEAST_DEVIATION = 1e-9
FINITE_AGAIN = 10
BLOCKS = 64
PLATEAU_SHARE = 0.01
MAX_SERIES = 10_000
MAX_METRICS = 100


class LossSample(Struct, frozen=True, gc=False):
    """A logged loss. `ref` is the event that has it; only the samples of a `leader` make the series
    of the task, the others are looked at for values that are not finite."""

    task: str
    worker: str
    generation: int
    step: int
    name: str
    value: float
    ref: str
    leader: bool = False


class LossRules:
    """Follows the losses of all tasks."""

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._series: dict[str, LossSeries] = {}
        self._finite: dict[str, dict[str, int]] = {}
        self._began: dict[str, tuple[int, str]] = {}

    def adopt(self, alert: Alert) -> None:
        """Continue with an open alert after a restart: its metric, or its spike and limit."""
        if alert.rule == NOT_FINITE:
            self._finite[alert.task] = {str(alert.evidence.get("metric", "loss")): 0}
        if alert.rule == SPIKE:
            numbers = {
                name: float(value)
                for name, value in alert.evidence.items()
                if isinstance(value, float | int)
            }
            series = self._series[alert.task] = LossSeries(self._limits)
            series.spike = Spike(
                step=int(numbers["step"]),
                ref="",
                lowest=numbers["loss"],
                median=numbers["median"],
                top=numbers["highest_before"],
                limit=numbers["limit"],
                reported=True,
            )

    def forget(self, task: str) -> None:
        """Drop the series of a task that has ended."""
        self._series.pop(task, None)
        self._finite.pop(task, None)
        self._began.pop(task, None)

    def sample(self, sample: LossSample, now_ns: int) -> None:
        """Judge one loss."""
        if not math.isfinite(sample.value):
            self._not_finite(sample, now_ns)
        elif sample.leader:
            self._finite_again(sample)
            if sample.name == "loss":
                self._judge_series(sample, now_ns)

    def _not_finite(self, sample: LossSample, now_ns: int) -> None:
        if not self._limits.on(NOT_FINITE):
            return
        shown = "NaN" if math.isnan(sample.value) else "infinite"
        finite = self._finite.setdefault(sample.task, {})
        if sample.name in finite or len(finite) < MAX_METRICS:
            finite[sample.name] = 0
        subject = f"task:{sample.task}"
        if not self._conditions.holds(NOT_FINITE, subject):
            self._began[sample.task] = (sample.step, sample.ref)
        step, ref = self._began.get(sample.task, (sample.step, sample.ref))
        since = f" since step {step}, last" if step < sample.step else ""
        self._conditions.hold(
            Finding(
                rule=NOT_FINITE,
                subject=subject,
                severity="error",
                text=f"{sample.name} of {sample.task} is {shown}{since} at step {sample.step} "
                f"({sample.worker})",
                evidence={
                    "value": shown,
                    "metric": sample.name,
                    "step": step,
                    "last_step": sample.step,
                },
                causes=tuple(dict.fromkeys((ref, sample.ref))),
                task=sample.task,
                worker=sample.worker,
            ),
            now_ns,
        )

    def _finite_again(self, sample: LossSample) -> None:
        """Count finite values; the alert ends when every metric that was not finite is again."""
        finite = self._finite.get(sample.task, {})
        if sample.name not in finite:
            return
        finite[sample.name] += 1
        if finite[sample.name] < FINITE_AGAIN:
            return
        del finite[sample.name]
        if not finite:
            reason = (
                f"the last {FINITE_AGAIN} values of {sample.name} are finite, "
                f"up to step {sample.step}"
            )
            self._conditions.end(NOT_FINITE, f"task:{sample.task}", reason, (sample.ref,))

    def _judge_series(self, sample: LossSample, now_ns: int) -> None:
        series = self._series.get(sample.task)
        if series is None:
            if len(self._series) >= MAX_SERIES:
                return
            series = self._series[sample.task] = LossSeries(self._limits)
        if not series.add(sample):
            return
        if self._limits.on(SPIKE):
            self._judge_spike(series, sample, now_ns)
        if self._limits.on(PLATEAU) and series.blocks.completed:
            self._judge_plateau(series, sample, now_ns)

    def _judge_spike(self, series: "LossSeries", sample: LossSample, now_ns: int) -> None:
        subject = f"task:{sample.task}"
        spike = series.spike
        if spike is None:
            return
        if spike.ended:
            series.spike = None
            self._conditions.end(SPIKE, subject, spike.ended, (sample.ref,))
        elif not spike.reported:
            spike.reported = True
            self._conditions.hold(
                Finding(
                    rule=SPIKE,
                    subject=subject,
                    severity="warning",
                    text=f"the loss of {sample.task} jumped to {spike.lowest:.4g} or more at step "
                    f"{spike.step}; before it was {spike.median:.4g}, never above {spike.top:.4g}",
                    evidence={
                        "step": spike.step,
                        "loss": sample.value,
                        "median": spike.median,
                        "highest_before": spike.top,
                        "limit": spike.limit,
                        "spike_deviations": self._limits.spike_deviations,
                    },
                    causes=(spike.ref, sample.ref),
                    task=sample.task,
                    worker=sample.worker,
                ),
                now_ns,
            )

    def _judge_plateau(self, series: "LossSeries", sample: LossSample, now_ns: int) -> None:
        subject = f"task:{sample.task}"
        fall = series.blocks.fall()
        if fall is None:
            return
        limit = PLATEAU_SHARE * abs(fall.before)
        if fall.by >= limit:
            reason = f"the loss falls again: {fall.before:.4g} to {fall.now:.4g}"
            self._conditions.end(PLATEAU, subject, reason, (sample.ref,))
        elif fall.by + fall.uncertainty < limit and not self._conditions.holds(PLATEAU, subject):
            self._conditions.hold(
                Finding(
                    rule=PLATEAU,
                    subject=subject,
                    severity="info",
                    text=f"the loss of {sample.task} is {fall.now:.4g} at step {sample.step}; at "
                    f"step {fall.step} it was {fall.before:.4g}",
                    evidence={
                        "step": sample.step,
                        "since_step": fall.step,
                        "loss": fall.now,
                        "loss_before": fall.before,
                        "uncertainty": fall.uncertainty,
                        "least_fall": limit,
                        "plateau_steps": self._limits.plateau_steps,
                    },
                    causes=(sample.ref,),
                    task=sample.task,
                    worker=sample.worker,
                ),
                now_ns,
            )


class Spike(Struct):
    """A spike in progress: where it began, and the window before it."""

    step: int
    ref: str
    lowest: float
    median: float
    top: float
    limit: float
    losses: int = 0
    below: int = 0
    reported: bool = False
    ended: str = ""


class LossSeries:
    """The losses of one task: a window before the newest, and the whole run in blocks."""

    def __init__(self, thresholds: AlertThresholds) -> None:
        self.spike: Spike | None = None
        self.blocks = LossBlocks(thresholds.plateau_steps)
        self._deviations = thresholds.spike_deviations
        self._window: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._newest: deque[LossSample] = deque(maxlen=SPIKE_STEPS)
        self._generation = 0

    def add(self, sample: LossSample) -> bool:
        """Take a loss; False if it is of an earlier generation or step than the newest one."""
        if sample.generation < self._generation:
            return False
        if sample.generation > self._generation:
            self._generation = sample.generation
            self._forget_from(sample.step)
        elif self._newest and sample.step < self._newest[-1].step:
            return False
        self.blocks.add(sample.step, sample.value)
        if self.spike is not None:
            self._follow_spike(self.spike, sample)
        else:
            if len(self._newest) == SPIKE_STEPS:
                self._window.append((self._newest[0].step, self._newest[0].value))
            self._newest.append(sample)
            self.spike = self._spike()
        return True

    def _forget_from(self, step: int) -> None:
        """Forget the losses of steps that are trained again."""
        kept = [each for each in (*self._window, *self._recent()) if each[0] < step]
        self._window = deque(kept, maxlen=WINDOW)
        self._newest.clear()
        self.blocks.forget_from(step)
        if self.spike is not None and self.spike.step >= step:
            self.spike.ended = f"the task continued at step {step}, before the spike"

    def _recent(self) -> list[tuple[int, float]]:
        return [] if self.spike is not None else [(e.step, e.value) for e in self._newest]

    def _spike(self) -> Spike | None:
        """The spike that the newest losses are, if they are one."""
        if len(self._window) < LEAST or len(self._newest) < SPIKE_STEPS:
            return None
        lowest = min(sample.value for sample in self._newest)
        if lowest <= self._window[-1][1]:
            return None  # most losses end here, without a look at the whole window
        losses = [loss for _, loss in self._window]
        top = max(losses)
        if lowest <= top:
            return None
        middle = median(losses)
        spread = 1.4826 * median(abs(loss - middle) for loss in losses)
        limit = middle + self._deviations * max(spread, LEAST_SPREAD * abs(middle), LEAST_DEVIATION)
        if lowest <= limit:
            return None
        first = self._newest[0]
        return Spike(
            step=first.step, ref=first.ref, lowest=lowest, median=middle, top=top, limit=limit
        )

    def _follow_spike(self, spike: Spike, sample: LossSample) -> None:
        """Follow the losses of a spike until they are back below the limit, or the usual."""
        if spike.ended:
            return
        spike.losses += 1
        spike.below = spike.below + 1 if sample.value <= spike.limit else 0
        self._newest.append(sample)
        if spike.below >= SPIKE_STEPS:
            spike.ended = f"the loss is {sample.value:.4g} at step {sample.step}"
        elif spike.losses >= WINDOW:
            spike.ended = f"the loss has stayed at the new level for {WINDOW} steps"
            self._window.clear()


class Fall(Struct, frozen=True):
    """By how much the loss fell in the second half of the run, and how uncertain that is."""

    step: int
    before: float
    now: float
    uncertainty: float

    @property
    def by(self) -> float:
        """The difference; negative if the loss rose."""
        return self.before - self.now


class LossBlocks:
    """The losses of a run as medians of equal blocks: at most twice `BLOCKS`, then they are joined
    two by two. `completed` tells whether the newest loss completed a block."""

    def __init__(self, plateau_steps: int) -> None:
        self.completed = False
        self._size = max(plateau_steps // BLOCKS, 1)
        self._blocks: list[tuple[int, float]] = []
        self._open: list[tuple[int, float]] = []

    def add(self, step: int, loss: float) -> None:
        """Take a loss."""
        self._open.append((step, loss))
        self.completed = len(self._open) >= self._size
        if not self.completed:
            return
        self._blocks.append((self._open[0][0], median(each for _, each in self._open)))
        self._open = []
        if len(self._blocks) >= 2 * BLOCKS:
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=True)
            self._blocks = [(a[0], (a[1] + b[1]) / 2) for a, b in pairs]
            self._size *= 2

    def forget_from(self, step: int) -> None:
        """Forget the blocks that begin at this step or later."""
        self._blocks = [each for each in self._blocks if each[0] < step]
        self._open = [each for each in self._open if each[0] < step]

    def fall(self) -> Fall | None:
        """How the loss fell in the second half of the run; None while that is too short."""
        count = len(self._blocks)
        if count < BLOCKS:
            return None
        before = self._blocks[count * 3 // 8 : count // 2]
        now = self._blocks[count * 7 // 8 :]
        (middle, error), (newest, newest_error) = _estimate(before), _estimate(now)
        return Fall(
            step=before[-1][0],
            before=middle,
            now=newest,
            uncertainty=3 * math.hypot(error, newest_error),
        )


def _estimate(blocks: list[tuple[int, float]]) -> tuple[float, float]:
    """The median of blocks, and its standard error."""
    losses = [loss for _, loss in blocks]
    middle = median(losses)
    mean = sum(losses) / len(losses)
    variance = sum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1)
    return middle, 1.2533 * math.sqrt(variance / len(losses))
