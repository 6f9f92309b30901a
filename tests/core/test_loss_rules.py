"""Loss rules: planted NaN, spike and plateau are found; noisy but healthy losses raise nothing."""

import math
import random

import pytest

from strata.core.alerts.alert_record import Ending, Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.loss_rules import LossRules, LossSample
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.state import Alert

SECOND_NS = 1_000_000_000


class Losses:
    """Feeds losses to the rules and keeps what they found; one second per call of `log`."""

    def __init__(self, **thresholds: object) -> None:
        self.conditions = OpenConditions(settle_s=0)
        self.rules = LossRules(self.conditions, AlertThresholds(**thresholds))
        self.step = 0
        self.now_ns = 0
        self.found: list[Finding | Ending] = []

    def log(self, *values: float, generation: int = 1, leader: bool = True, name: str = "loss"):
        for value in values:
            self.rules.sample(
                LossSample(
                    task="t",
                    worker="w-0",
                    generation=generation,
                    step=self.step,
                    name=name,
                    value=value,
                    ref=f"w-0.1.{self.step}",
                    leader=leader,
                ),
                self.now_ns,
            )
            self.step += 1
            self.look()
        return self

    def look(self):
        self.now_ns += SECOND_NS
        self.found += self.conditions.changes(self.now_ns)

    @property
    def raised(self) -> list[str]:
        return [each.rule for each in self.found if isinstance(each, Finding)]

    @property
    def ended(self) -> list[str]:
        return [each.reason for each in self.found if isinstance(each, Ending)]


def noise(count, level=2.0, spread=0.1, seed=7):
    rng = random.Random(seed)
    return [level + rng.gauss(0, spread) for _ in range(count)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_loss_of_one_step_that_is_not_finite_is_found_and_ends_with_finite_ones(value):
    losses = Losses().log(1.0, value, 1.0)
    (found,) = losses.found
    assert found.rule == "loss_not_finite"
    assert found.causes == ("w-0.1.1",)
    assert found.evidence["step"] == 1
    losses.log(*noise(9))
    assert losses.ended == ["the last 10 values of loss are finite, up to step 11"]


def test_metric_that_is_not_finite_is_found_on_any_worker():
    losses = Losses().log(math.nan, leader=False, name="val_loss")
    assert "val_loss of t is NaN at step 0" in losses.found[0].text


def test_alert_about_a_metric_ends_when_that_metric_is_finite_again():
    losses = Losses().log(math.nan, name="val_loss")
    losses.log(*noise(30))
    assert losses.ended == []
    losses.log(*noise(10), name="val_loss")
    assert losses.ended == ["the last 10 values of val_loss are finite, up to step 40"]
    losses.log(math.nan, name="train_loss").log(*noise(10), name="train_loss")
    assert len(losses.ended) == 2


def test_alert_about_two_metrics_ends_when_both_are_finite_again():
    losses = Losses().log(math.nan).log(math.nan, name="val_loss").log(*noise(10), name="val_loss")
    assert losses.ended == []
    losses.log(*noise(10))
    assert losses.ended == ["the last 10 values of loss are finite, up to step 21"]


def test_alert_about_a_metric_ends_by_that_metric_after_a_restart():
    found = Losses().log(math.nan, name="val_loss").found[0]
    after = Losses()
    after.rules.adopt(recorded(found))
    after.conditions.adopt(recorded(found), 0)
    after.log(*noise(30))
    assert after.ended == []
    after.log(*noise(10), name="val_loss")
    assert len(after.ended) == 1


def test_rounding_error_after_losses_of_zero_is_no_spike():
    assert Losses().log(*[0.0] * 300).log(1e-12, 1e-12, 1e-12).raised == []


def test_spike_is_found_at_its_third_step_and_ends_when_the_loss_is_back():
    losses = Losses().log(*noise(100))
    losses.log(7.0, 6.5)
    assert losses.raised == []
    losses.log(6.0)
    (found,) = losses.found
    assert found.rule == "loss_spike"
    assert found.evidence["step"] == 100
    assert found.evidence["median"] == pytest.approx(2.0, abs=0.05)
    assert found.causes == ("w-0.1.100", "w-0.1.102")
    losses.log(5.0, *noise(3))
    assert losses.ended == [f"the loss is {noise(3)[-1]:.4g} at step 106"]


def test_loss_that_stays_at_a_new_level_makes_that_the_usual():
    losses = Losses().log(*noise(100)).log(*noise(200, level=6))
    assert losses.raised == ["loss_spike"]
    losses.log(*noise(100, level=6))
    assert losses.ended == ["the loss has stayed at the new level for 200 steps"]
    assert losses.raised == ["loss_spike"]


def test_single_bad_batch_is_no_spike():
    losses = Losses().log(*noise(100)).log(50.0, 2.0, 50.0, 2.0)
    assert losses.raised == []


def test_nothing_is_a_spike_before_fifty_losses():
    assert Losses().log(*noise(49), 9.0, 9.0, 9.0).raised == []


def test_losses_of_other_workers_are_no_part_of_the_series():
    losses = Losses().log(*noise(100)).log(9.0, 9.0, 9.0, leader=False)
    assert losses.raised == []


def test_rollback_forgets_the_losses_that_it_undid():
    losses = Losses().log(*noise(100)).log(9.0, 9.0, 9.0)
    losses.step = 90
    losses.log(*noise(20), generation=2)
    assert losses.ended == ["the task continued at step 90, before the spike"]
    late = Losses().log(*noise(60), generation=2)
    late.log(9.0, 9.0, 9.0, generation=1)
    assert late.raised == []


def test_spike_goes_on_after_a_restart_with_the_limit_of_its_alert():
    losses = Losses().log(*noise(100)).log(9.0, 9.0, 9.0)
    alert = losses.found[0]
    after = Losses()
    after.step = losses.step
    after.rules.adopt(recorded(alert))
    after.conditions.adopt(recorded(alert), 0)
    after.log(8.0, 2.0, 2.0)
    assert after.ended == []
    after.log(2.0)
    assert after.ended == ["the loss is 2 at step 106"]


def recorded(found: Finding):
    return Alert(
        id="alert-1",
        rule=found.rule,
        severity=found.severity,
        subject=found.subject,
        text=found.text,
        raised_ns=1,
        position=1,
        task=found.task,
        evidence=found.evidence,
    )


def test_plateau_is_found_after_enough_steps_and_ends_when_the_loss_falls_again():
    losses = Losses(plateau_steps=640)
    losses.log(*noise(639, spread=0.01))
    assert losses.raised == []
    losses.log(*noise(64, spread=0.01))
    (found,) = losses.found
    assert (found.rule, found.severity) == ("loss_plateau", "info")
    assert found.evidence["loss"] == pytest.approx(2.0, abs=0.02)
    losses.log(*noise(300, level=1.5, spread=0.01))
    assert len(losses.ended) == 1
    assert losses.ended[0].startswith("the loss falls again: ")


def falling(power):
    return lambda step: 10 * (step + 10) ** -power


HEALTHY = {
    "gaussian noise": lambda rng, step: 2 + 2 * math.exp(-step / 3000) + rng.gauss(0, 0.3),
    "slow power law": lambda rng, step: falling(0.05)(step) + rng.gauss(0, 0.05),
    "log-normal noise": lambda rng, step: falling(0.1)(step) * rng.lognormvariate(0, 0.7),
    "heavy tails": lambda rng, step: falling(0.2)(step) * (1 + abs(rng.paretovariate(1.5) - 1)),
    "one bad batch in fifty": lambda rng, step: falling(0.2)(step) * (30 if step % 50 == 0 else 1),
    "waves of a schedule": lambda rng, step: falling(0.2)(step) * (1.2 + math.sin(step / 40) / 5),
    "tiny loss": lambda rng, step: 1e-6 * falling(0.2)(step) * rng.uniform(0.5, 1.5),
}


@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noisy_but_healthy_loss_raises_nothing(kind, seed):
    rng = random.Random(seed)
    losses = Losses(plateau_steps=1_000)
    losses.log(*(HEALTHY[kind](rng, step) for step in range(10_000)))
    assert losses.raised == []


def test_rules_that_are_off_find_nothing():
    off = frozenset({"loss_not_finite", "loss_spike", "loss_plateau"})
    losses = Losses(off=off, plateau_steps=64)
    losses.log(*noise(200, spread=0.001)).log(9.0, 9.0, 9.0, math.nan)
    assert losses.raised == []
