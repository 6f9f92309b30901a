"""Write a small training script and `strata.toml` into a folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata import extras
from strata.cli.support import texts
from strata.cli.support.tables import plain
from strata.errors import AlreadyExists

SCRIPT, SETTINGS = "train.py", "strata.toml"
NEEDS = {"numpy": "numpy", "torch": "torch", "hf": "transformers", "jax": "jax"}

Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder; created if it is new.")]
Template = Annotated[
    Literal["numpy", "torch", "hf", "jax"],
    typer.Option(help="Framework of the script; hf: the Trainer of Hugging Face."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the files if they exist.")]


def init(folder: Folder = Path("."), template: Template = "numpy", force: Force = False) -> None:
    """Write a small training script and `strata.toml` into a folder.

    What it writes runs at once: strata run train.py.
    """
    contents = {SCRIPT: template, SETTINGS: "settings"}
    existing = [name for name in contents if (folder / name).exists()]
    if existing and not force:
        raise AlreadyExists(
            f"{plain(str(folder / existing[0]))} exists already",
            hint="give another folder, or --force to overwrite it",
        )
    source = Path(next(iter(texts.__path__)))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        content = (source / f"{text}.txt").read_text("utf-8")
        (folder / name).write_text(content, "utf-8")
        typer.echo(f"wrote {plain(str(folder / name))}")
    if not extras.installed(NEEDS[template]):
        typer.echo(f"the script needs {NEEDS[template]}: pip install {NEEDS[template]}")
    where = "" if folder.resolve() == Path.cwd() else f"cd {plain(str(folder))} && "
    typer.echo(f"next: {where}strata run {SCRIPT}")
