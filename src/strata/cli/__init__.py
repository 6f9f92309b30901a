"""The `strata` command: one file per verb, each holding a function of the same name."""

import ast
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from strata import __version__
from strata.cli import _exit_codes, _terminal
from strata.errors import InvalidArgument, NotFound, StrataError


def main() -> None:
    """Run the verb named on the command line; what is no bug is a sentence, not a traceback."""
    with _terminal.guarded():
        sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    """Runs a verb and returns its exit code."""
    try:
        return build_app(arguments)(standalone_mode=False) or _exit_codes.DONE
    except typer.Abort:
        return _exit_codes.FAILED
    except TyperException as error:
        return _refuse_usage(error)
    except StrataError as error:
        code = _exit_codes.code_of(error)
        _terminal.print_error(error.code, error.message, error.hint, code)
        return code
    except OSError as error:
        if error.filename is None:
            raise
        found = not isinstance(error, FileNotFoundError)
        code = _exit_codes.FAILED if found else _exit_codes.NOT_FOUND
        message = f"{error.filename}: {error.strerror}"
        hint = "check the path, and that this user may use it"
        _terminal.print_error("error" if found else NotFound.code, message, hint, code)
        return code


def _refuse_usage(error: TyperException) -> int:
    """Says what is wrong with the command line, or shows the help where it is empty."""
    if _terminal.wants_json(sys.argv[1:]):
        message, hint = error.format_message(), "--help lists arguments and options"
        _terminal.print_error(InvalidArgument.code, message, hint, _exit_codes.USAGE)
    else:
        show: Callable[[], None] = getattr(error, "show", lambda: None)
        show()
    return _exit_codes.USAGE


def build_app(arguments: list[str]) -> typer.Typer:
    """The app with every verb listed, but only those named in the arguments imported."""
    # Plain help and plain tracebacks: rich markup alone would double the time of --help.
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
    )
    app.callback(epilog=_exit_codes.help_text())(strata)
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
