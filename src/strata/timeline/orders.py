"""The order in which a task's dataset was trained, as the facts tell it: one, or several mixed."""

import msgspec

from strata.core.datasets import DatasetSpec, order_of
from strata.data.mixing import MixedOrder
from strata.data.steps import Ordered
from strata.timeline.lineage import Lineage


def parts_of(spec: DatasetSpec) -> list[tuple[str, float]]:
    """The datasets of a mixture with their weights; none for a plain dataset."""
    recipe = spec.metadata.get("mixture")
    return msgspec.json.decode(recipe, type=list[tuple[str, float]]) if recipe else []


def order_for(lineage: Lineage, name: str) -> Ordered:
    """Which samples the steps of the task trained of a dataset, or of a mixture."""
    spec, feed = lineage.specs[name], lineage.feeds[name]
    parts = parts_of(spec)
    if not parts:
        return order_of(spec, feed)
    orders = [order_of(lineage.specs[part], feed) for part, _ in parts]
    return MixedOrder(orders, [weight for _, weight in parts], seed=spec.seed)
