"""The `strata` command: one file per verb, each with a function of the same name."""

import ast
import importlib
import keyword
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from strata import __version__, extras
from strata.cli.support import exit_codes, terminal
from strata.errors import InvalidArgument, NotFound, StrataError

try:
    from typer.exceptions import TyperException
except ModuleNotFoundError:  # before 0.26 Typer raised the exceptions of click
    from click import ClickException as TyperException  # type: ignore[assignment]

OPTIONAL_VALUES = {"--resume": "newest"}
"""Options that may stand without a value, and what that means."""


def main() -> None:
    """Run the verb on the command line. Only a bug prints a traceback."""
    with terminal.guarded():
        sys.exit(_run())


def _run() -> int:
    """Run the verb and return its exit code."""
    try:
        return build_app()(prog_name="strata", standalone_mode=False) or exit_codes.DONE
    except typer.Abort:
        return exit_codes.FAILED
    except TyperException as error:
        return _refuse_usage(error)
    except StrataError as error:
        return _refuse(error)
    except ModuleNotFoundError as error:
        missing = extras.explained(error)
        if missing is None:
            raise
        return _refuse(missing)
    except OSError as error:
        if error.filename is None:
            raise
        found = not isinstance(error, FileNotFoundError)
        code = exit_codes.FAILED if found else exit_codes.NOT_FOUND
        message = f"{error.filename}: {error.strerror}"
        hint = "check the path and its permissions"
        terminal.print_error("error" if found else NotFound.code, message, hint, code)
        return code


def _refuse(error: StrataError) -> int:
    """Print an error, and return its exit code."""
    code = exit_codes.code_of(error)
    terminal.print_error(error.code, error.message, error.hint, code)
    return code


def _refuse_usage(error: TyperException) -> int:
    """Print what is wrong with the command line, or the help if it is empty."""
    error.message = error.message.removeprefix("Value error, ")  # which Typer's checks add
    if terminal.wants_json(sys.argv[1:]):
        message, hint = error.format_message(), "use --help to list the arguments and options"
        terminal.print_error(InvalidArgument.code, message, hint, exit_codes.USAGE)
    else:
        show: Callable[[], None] = getattr(error, "show", lambda: None)
        show()
    return exit_codes.USAGE


class VerbGroup(TyperGroup):
    """Lists verbs by their summaries, and imports one when it is called or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The verb that the arguments name, imported."""
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None or listed is None:
            return name, listed, rest
        rest = with_values(rest)
        info = CommandInfo(name=name, callback=load_verb(name.replace("-", "_")))
        verb = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
        if name == "run" and not ctx.resilient_parsing:
            ctx.default_map = {name: defaults_of(verb)}
        return name, verb, rest


def defaults_of(verb: Any) -> dict[str, Any]:
    """The defaults of the options of `strata run` that `strata.toml` has."""
    # Imported here: no other verb reads this table.
    from strata.config import DEFAULT_FILE
    from strata.settings_file import run_defaults

    options = [each.name for each in verb.params if each.param_type_name == "option"]
    return run_defaults(DEFAULT_FILE, options) if DEFAULT_FILE.exists() else {}


def build_app() -> typer.Typer:
    """The app with every verb listed and none imported."""
    # Plain help and plain tracebacks: rich markup alone would double the time of --help.
    app = typer.Typer(
        cls=VerbGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
    )
    app.callback(epilog=exit_codes.help_text())(strata)
    for file in verb_files():
        app.command(file.stem.replace("_", "-"), help=summary(file))(not_loaded)
    return app


def verb_files() -> list[Path]:
    return sorted(file for file in Path(__file__).parent.glob("*.py") if file.stem[0] != "_")


def load_verb(name: str) -> Callable[..., None]:
    function = f"{name}_" if keyword.iskeyword(name) else name
    verb: Callable[..., None] = getattr(importlib.import_module(f"{__name__}.{name}"), function)
    return verb


def with_values(arguments: list[str]) -> list[str]:
    """The arguments, with a value for each option that may be given without one."""
    found = list(arguments)
    own = found.index("--") if "--" in found else len(found)
    for at in range(own):
        following = found[at + 1] if at + 1 < own else "-"
        if found[at] in OPTIONAL_VALUES and following.startswith("-") | following.endswith(".py"):
            found[at] = f"{found[at]}={OPTIONAL_VALUES[found[at]]}"
    return found


def summary(file: Path) -> str:
    """The first clause of a verb's docstring, read without importing the verb."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return f"{re.split('[.:;]', text, maxsplit=1)[0]}."


def not_loaded() -> None:
    raise AssertionError("a verb is loaded before it is called")


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
    """Strata: a distributed-training runtime that records every event."""
