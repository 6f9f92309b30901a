"""Register a dataset: `strata dataset add NAME PATH`, or by its sizes alone."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

from strata.cli._api import reach
from strata.cli._look import console, count, plain, print_json
from strata.cli._options import AsJson, Url
from strata.cli.datasets import Dataset
from strata.errors import InvalidArgument

if TYPE_CHECKING:
    from strata.data import dataset as data

Action = Annotated[Literal["add"], typer.Argument(help="What to do.")]
Name = Annotated[str, typer.Argument(help="Id under which tasks refer to it.")]
DataPath = Annotated[
    str, typer.Argument(metavar="PATH", help="A file, a folder or s3://…", show_default=False)
]
Format = Annotated[str, typer.Option(help="Storage format; else detected from the files.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Option of the format, such as length=1025."
    ),
]
Samples = Annotated[int, typer.Option(min=0, help="Number of samples, when no path is given.")]
ShardSize = Annotated[int, typer.Option(min=0, help="Samples per shard; 0 chooses a size.")]
Shuffle = Annotated[bool, typer.Option(help="Shuffle the samples anew in each epoch.")]
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
    seed: Seed = 42,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a dataset: `strata dataset add NAME PATH`, or by its sizes alone.

    With a path the data is scanned here: samples, shards and fingerprint are read from it.
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
    known = msgspec.json.decode(answer, type=Dataset)
    shards = "1 shard" if known.shard_count == 1 else f"{count(known.shard_count)} shards"
    what = f"{count(known.total_samples)} samples in {shards}"
    kind = f" of {plain(known.format)}" if known.format else ""
    console().print(Text.assemble(("✓ ", "green"), f"{plain(known.id)}: {what}{kind}"))


def opened(
    name: str, path: str, format: str, shard_size: int, options: list[str]
) -> "data.Dataset":
    """The data at a path, which is scanned here."""
    from strata.data.dataset import open_dataset
    from strata.data.specs import checked_options

    told = checked_options(name, dict(_option(each) for each in options))
    return open_dataset(path, format, name=name, shard_size=shard_size, **told)


def _option(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is JSON where it can be, else text."""
    key, separator, value = text.partition("=")
    if not key.isidentifier() or not separator:
        raise InvalidArgument(f"--option {text!r} is not KEY=VALUE", hint="as --option length=1025")
    try:
        return key, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return key, value
