"""List the datasets: how large each one is and how it is divided."""

from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import Column, Look, ago, count, print_list
from strata.cli._options import AsJson, Limit, Url


class Dataset(Struct, frozen=True):
    """What is shown of a dataset."""

    id: str
    name: str
    path: str
    format: str
    total_samples: int
    shard_size: int
    shard_count: int
    shuffle: bool
    seed: int
    registered_at: int


LOOK = Look(
    "datasets",
    Dataset,
    [
        Column("dataset", lambda dataset, _: dataset.id, shrinks=True),
        Column("samples", lambda dataset, _: count(dataset.total_samples), "right"),
        Column("shards", lambda dataset, _: count(dataset.shard_count), "right"),
        Column("per shard", lambda dataset, _: count(dataset.shard_size), "right"),
        Column("shuffled", lambda dataset, _: f"seed {dataset.seed}" if dataset.shuffle else "no"),
        Column("format", lambda dataset, _: dataset.format or "–", shrinks=True),
        Column("registered", lambda dataset, now_ms: ago(dataset.registered_at, now_ms)),
        Column("name", lambda dataset, _: dataset.name, shrinks=True, from_width=110),
        Column("path", lambda dataset, _: dataset.path or "–", shrinks=True, from_width=110),
    ],
    empty="no dataset is registered",
    next_command="strata dataset add NAME PATH",
)


def datasets(limit: Limit = 100, url: Url = None, as_json: AsJson = False) -> None:
    """List the datasets: how large each one is and how it is divided."""
    print_list(reach(url), LOOK, limit, as_json)
