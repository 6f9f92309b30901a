"""The `strata` command: one file per verb, each holding a function of the same name."""

import ast
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from strata import __version__
from strata.errors import StrataError


def main() -> None:
    """Run the verb named on the command line; what is no bug is a sentence, not a traceback."""
    try:
        build_app(sys.argv[1:])()
    except StrataError as error:
        typer.echo(f"strata: {error.message}", err=True)
        if error.hint:
            typer.echo(f"hint: {error.hint}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"strata: {error.filename}: {error.strerror}", err=True)
        typer.echo("hint: check the path, and that this user may use it", err=True)
        sys.exit(2)


def build_app(arguments: list[str]) -> typer.Typer:
    """The app with every verb listed, but only those named in the arguments imported."""
    # Plain help and plain tracebacks: rich markup alone would double the time of --help.
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
    )
    app.callback()(strata)
    for file in verb_files():
        name = file.stem.replace("_", "-")
        if name in arguments:
            app.command(name)(load_verb(file.stem))
        else:
            app.command(name, help=summary(file))(not_loaded)
    return app


def verb_files() -> list[Path]:
    return sorted(file for file in Path(__file__).parent.glob("*.py") if file.stem[0] != "_")


def load_verb(name: str) -> Callable[..., None]:
    verb: Callable[..., None] = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    return verb


def summary(file: Path) -> str:
    """What a verb does, from its docstring, read without importing it: up to the first detail."""
    told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return f"{re.split('[.:;]', told, maxsplit=1)[0]}."


def not_loaded() -> None:
    raise AssertionError("a verb that runs is named in the arguments, so it was loaded")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"strata {__version__}")
        raise typer.Exit


def strata(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Strata: a distributed-training runtime that remembers everything."""
