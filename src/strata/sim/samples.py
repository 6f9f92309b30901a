"""Made-up samples for the demo's preview: small pictures that follow from their number alone."""

from collections.abc import Sequence

import numpy as np

from strata.coordinator.previews import Sample
from strata.core.order import Order
from strata.data.preview import shown

SIDE = 16
CLASSES = ("rings", "stripes", "waves", "slope")


def samples(order: Order, step: int, lanes: Sequence[int]) -> list[Sample]:
    """The samples that a worker with these lanes trains in a step."""
    positions = order.positions(step, step + 1, lanes).ravel()
    numbers = order.samples(positions)
    return [
        sample(int(number), step, int(position))
        for number, position in zip(numbers, positions, strict=True)
    ]


def sample(number: int, step: int, position: int) -> Sample:
    """One picture with its class; the coordinator finds its shard by its position."""
    kind = number % len(CLASSES)
    return Sample(
        id=str(number),
        features={"image": shown(picture(number, kind))},
        label=CLASSES[kind],
        step=step,
        position=position,
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
