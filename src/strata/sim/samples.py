"""Made-up samples for the demo's preview: small pictures that follow from their number alone."""

import numpy as np

from strata.coordinator.previews import Sample
from strata.data.preview import shown

SIDE = 16
CLASSES = ("rings", "stripes", "waves", "slope")


def samples(step: int, first: int, count: int, total: int) -> list[Sample]:
    """What a worker could have before it in a step: `count` samples from a number on."""
    numbers = [(step * 7919 + first + each) % total for each in range(count)]
    return [sample(number, step) for number in numbers]


def sample(number: int, step: int) -> Sample:
    """One picture with its class."""
    kind = number % len(CLASSES)
    return Sample(
        id=str(number),
        features={"image": shown(picture(number, kind))},
        label=CLASSES[kind],
        shard_id=number // SIDE,
        step=step,
    )


def picture(number: int, kind: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A pattern of a class; where it lies and its colours are the number's own."""
    dice = np.random.default_rng(number)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE - dice.uniform(0.3, 0.7)
    angle = dice.uniform(0, np.pi)
    along = x * np.cos(angle) + y * np.sin(angle)
    waves = (np.hypot(x, y) * 18, along * 22, along * 9 + np.sin(y * 9), along * 3)
    light = (np.sin(waves[kind]) + 1) / 2
    low, high = dice.uniform(20, 110, 3), dice.uniform(140, 240, 3)
    return np.asarray(low + light[:, :, None] * (high - low), np.uint8)
