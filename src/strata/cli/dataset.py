"""Register a dataset."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.text import Text

from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import console, count, plain, print_json
from strata.cli.support.task_options import pairs, typed
from strata.coordinator.rest.response_models import DatasetResponse
from strata.core.rule_settings import SHUFFLE_SEED

if TYPE_CHECKING:
    from strata.data import source_dataset as data

Action = Annotated[Literal["add"], typer.Argument(help="Action.")]
Name = Annotated[str, typer.Argument(help="Id of the dataset.")]
DataPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="File, folder or s3:// URL of the data.", show_default=False
    ),
]
Format = Annotated[str, typer.Option(help="Storage format; default: detected from the files.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Option of the format, such as length=1025."
    ),
]
Samples = Annotated[int, typer.Option(min=0, help="Number of samples, if no path is given.")]
ShardSize = Annotated[int, typer.Option(min=0, help="Samples per shard; 0: automatic.")]
Shuffle = Annotated[bool, typer.Option(help="Shuffle the samples in each epoch.")]
Seed = Annotated[int, typer.Option(help="Shuffle seed.")]


def dataset(
    action: Action,
    name: Name,
    path: DataPath = "",
    format: Format = "",
    option: Options = None,
    samples: Samples = 0,
    shard_size: ShardSize = 0,
    shuffle: Shuffle = True,
    seed: Seed = SHUFFLE_SEED,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a dataset: `strata dataset add NAME PATH`, or with --samples instead of a path.

    With a path the data is scanned on this host for samples, shards and fingerprint.
    """
    body: dict[str, object] = {
        "total_samples": samples,
        "shard_size": shard_size,
        "shuffle": shuffle,
        "seed": seed,
    }
    if path:
        found = opened(name, path, format, shard_size, option or [])
        body = msgspec.structs.asdict(found.spec(shuffle=shuffle, seed=seed))
    answer = reach(url).post("/api/datasets", {"dataset_id": name, **body})
    if as_json:
        return print_json([answer])
    known = msgspec.json.decode(answer, type=DatasetResponse)
    shards = "1 shard" if known.shard_count == 1 else f"{count(known.shard_count)} shards"
    what = f"{count(known.total_samples)} samples in {shards}"
    kind = f" of {plain(known.format)}" if known.format else ""
    console().print(Text.assemble(("✓ ", "green"), f"{plain(known.id)}: {what}{kind}"))


def opened(
    name: str, path: str, format: str, shard_size: int, options: list[str]
) -> "data.Dataset":
    """Open and scan the data at a path."""
    from strata.data.dataset_specs import checked_options
    from strata.data.source_dataset import open_dataset

    given = {key: typed(value) for key, value in pairs(options, "--option").items()}
    checked = checked_options(name, given)
    return open_dataset(path, format, name=name, shard_size=shard_size, **checked)
