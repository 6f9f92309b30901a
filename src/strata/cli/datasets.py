"""List the datasets."""

from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import Column, Look, ago, count, print_list
from strata.coordinator.rest.response_models import DatasetResponse

LOOK = Look(
    "datasets",
    DatasetResponse,
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
    """List the datasets: samples, shards and order of each."""
    print_list(reach(url), LOOK, limit, as_json)
