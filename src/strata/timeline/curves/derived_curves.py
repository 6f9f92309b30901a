"""Curves that are derived from recorded steps, without a call of the script.

- `step_s` and its parts `data_s`, `compute_s`, `communication_s` and `wait_s`: the median over the
  workers, and the fastest and the slowest worker as `min` and `max`.
- `steps/s`, `samples/s`, `tokens/s`: of a bucket, all of its steps (samples, tokens) divided by the
  sum of the median times of its steps.
- `mfu`: the FLOPs that the model needs for the samples or tokens, as the script states them,
  divided by what the GPUs of the workers could have done in the time of the step. These workers
  are the ones whose samples are counted: all members of the generation, or the workers read.

The script states `flops_per_token` or `flops_per_sample`, and where they cannot be known otherwise
`tokens_per_sample` and `peak_flops` of a worker, with `run.log_config`. The tokens of a step are
the sum of what the workers logged as `tokens`, or its samples times `tokens_per_sample`. What is
not known is not derived; `Derived.notes` says why.
"""

import numpy as np
from msgspec import structs

from strata.timeline.curves.curve_series import Floats, Points
from strata.timeline.curves.gpu_peaks import peak_flops
from strata.timeline.curves.logged_rows import PARTS
from strata.timeline.curves.task_curves import TaskCurves

UNITS = {
    "step_s": "s",
    **dict.fromkeys(PARTS, "s"),
    "steps/s": "steps/s",
    "samples/s": "samples/s",
    "tokens/s": "tokens/s",
    "mfu": "fraction",
}
"""The unit of each derived curve."""

TOKENS = "tokens"
PER_TOKEN, PER_SAMPLE = "flops_per_token", "flops_per_sample"
TOKENS_PER_SAMPLE, PEAK = "tokens_per_sample", "peak_flops"


class Derived:
    """The derived curves of a task, of all workers or of one."""

    def __init__(self, curves: TaskCurves, worker: str = "") -> None:
        self._curves = curves
        self._worker = worker
        self.notes: list[str] = []

    def points(self, name: str) -> Points | None:
        """A derived curve; None if it is not recorded."""
        if name in PARTS:
            return self._present(self._curves.points("part", name, self._worker))
        seconds = self._present(self._curves.points("step_s", worker=self._worker))
        if seconds is None or name == "step_s":
            return seconds
        return self._curves.derived(name, self._worker, lambda: self._made(name, seconds))

    def _made(self, name: str, seconds: Points) -> Points | None:
        """A derived curve, from the seconds of the steps."""
        if name == "steps/s":
            return rate(seconds, np.ones(seconds.size))
        if name == "samples/s":
            return self._rate(seconds, self.samples())
        if name == "tokens/s":
            return self._rate(seconds, self.tokens())
        return self._mfu(seconds)

    def _present(self, points: Points) -> Points | None:
        return points if points.size else None

    def _rate(self, seconds: Points, amount: Floats | None) -> Points | None:
        """Amounts per second of the steps whose amount is recorded."""
        if amount is None:
            return None
        return rate(seconds, amount, amount > 0)

    def samples(self) -> Floats | None:
        """The samples of each step, of all workers; 0 where none are recorded."""
        own = self._curves.points("samples", worker=self._worker).total
        if not self._worker:
            averaged = self._curves.points("averaged").high
            own = np.where(averaged > 0, averaged, own)
        return own if own.any() else None

    def tokens(self) -> Floats | None:
        """The tokens of each step, of all workers; 0 where none are recorded."""
        steps = self._curves.points("step_s", worker=self._worker).step
        if TOKENS in self._curves.rows.logged:
            logged = self._curves.points("logged", TOKENS, self._worker)
            found = np.zeros(steps.size)
            within = logged.inside & np.isin(logged.step, steps)
            places = np.searchsorted(steps, logged.step[within])
            np.add.at(found, places, logged.total[within])
            return found if (found > 0).any() else None
        each, samples = self._stated(TOKENS_PER_SAMPLE), self.samples()
        return None if each is None or samples is None else samples * each

    def done(self, axis: str) -> Floats | None:
        """The cumulated samples or tokens after each step; None unless every step from 0 on has
        them recorded."""
        found = self._curves.derived(f"done {axis}", "", lambda: self._done(axis))
        return None if found is None else found.total

    def _done(self, axis: str) -> Points | None:
        steps = self._curves.points("step_s").step
        amount = self.samples() if axis == "samples" else self.tokens()
        if amount is None or not steps.size:
            return None
        whole = steps[0] == 0 and steps[-1] == steps.size - 1
        if not whole or not bool((amount > 0).all()):
            return None
        return structs.replace(self._curves.points("step_s"), total=np.cumsum(amount))

    def _stated(self, name: str) -> float | None:
        value = self._curves.rows.config.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if number and value > 0 else None  # type: ignore[arg-type, operator]

    def _mfu(self, seconds: Points) -> Points | None:
        per_token, per_sample = self._stated(PER_TOKEN), self._stated(PER_SAMPLE)
        if per_token is None and per_sample is None:
            return None
        amount = self.tokens() if per_token is not None else self.samples()
        if amount is None:
            unit = "tokens" if per_token is not None else "samples"
            self.notes.append(f"mfu is not recorded: the {unit} of the steps are not recorded")
            return None
        peak = self._peak()
        if peak is None:
            return None
        flops = amount * (per_token or per_sample or 0.0)
        workers = self._counted_workers(seconds, per_token is not None)
        known = (amount > 0) & (workers > 0)
        per_worker = np.divide(flops, workers, out=np.zeros(seconds.size), where=known)
        return rate(seconds, per_worker / peak, known)

    def _counted_workers(self, seconds: Points, of_tokens: bool) -> Floats:
        """How many workers the samples or tokens of each step are of; 0 where it is unknown."""
        read = seconds.count.astype(np.float64)
        if self._worker or (of_tokens and TOKENS in self._curves.rows.logged):
            return read
        averaged = self._curves.points("averaged").high
        return np.where(averaged > 0, self._curves.points("members").high, read)

    def _peak(self) -> float | None:
        """The peak FLOP/s of a worker; None if it is unknown or differs between workers."""
        stated = self._stated(PEAK)
        if stated is not None:
            return stated
        cards = set(self._curves.rows.gpus.values())
        if not cards:
            self.notes.append(
                f"mfu is not recorded: no GPU was recorded, and {PEAK!r} was not stated"
            )
            return None
        if len(cards) > 1:
            self.notes.append(
                f"mfu is not recorded: the workers have different GPUs; state {PEAK!r} of a worker"
            )
            return None
        peaks = [(card, peak_flops(card)) for card in next(iter(cards))]
        unknown = [card for card, peak in peaks if peak is None]
        if unknown:
            self.notes.append(
                f"mfu is not recorded: the peak of {unknown[0]!r} is not known; state {PEAK!r}"
            )
            return None
        return sum(peak for _, peak in peaks if peak is not None)


def rate(
    seconds: Points, amount: Floats, known: np.typing.NDArray[np.bool_] | None = None
) -> Points | None:
    """Amounts per second of each step; steps without a known amount or time are left out."""
    which = seconds.total > 0
    if known is not None:
        which &= known
    if not which.any():
        return None
    per_s = np.divide(amount, seconds.total, out=np.zeros(seconds.size), where=which)
    found = structs.replace(seconds, total=amount, weight=seconds.total, low=per_s, high=per_s)
    if which.all():
        return found
    columns = {
        name: getattr(found, name)[which]
        for name in found.__struct_fields__
        if name not in ("spoilt", "timely")
    }
    return structs.replace(found, **columns)
