"""`strata.toml`: settings by name, and in the table `[run]` defaults of options of `strata run`.

Options of the command line win over `[run]`. An unknown name is an error with the line of the file.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from strata.errors import SettingError

RUN = "run"


class SettingsFile(Struct, frozen=True):
    """The parsed file; `text` is used to find lines."""

    path: Path
    text: str
    settings: dict[str, Any]
    run: dict[str, Any]

    def place(self, name: str, table: str = "") -> str:
        """The file and, if it can be found, the line of a name."""
        inside = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := re.match(r"\s*\[+\s*([\w.\"-]+)\s*\]", line):
                inside = header[1]
            named = re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[.=]", line)
            if (named and inside == table) or (not table and inside == name):
                return f"{self.path}, line {number}"
        return str(self.path)


def read_settings_file(path: Path) -> SettingsFile:
    """Read and parse a file of settings."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        raise SettingError(
            f"cannot read {path}: {error.strerror}", hint="check its name and permissions"
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingError(
            f"{path} is not valid TOML: {error}", hint="correct that line: name = value"
        ) from error
    run = values.pop(RUN, {})
    found = SettingsFile(path=path, text=text, settings=values, run=run)
    if not isinstance(run, dict):
        raise SettingError(
            f"{RUN} is not a table in {found.place(RUN)}", hint="write [run], and options below it"
        )
    return found


def run_defaults(path: Path, options: Iterable[str]) -> dict[str, Any]:
    """The defaults of the options of `strata run` in the file, as the command line has them."""
    file = read_settings_file(path)
    found = {}
    for name, value in file.run.items():
        refuse_unknown([name], options, file.place(name, RUN), "option of `strata run`")
        found[name] = _pairs(name, value) if isinstance(value, Mapping) else value
    return found


def refuse_unknown(
    names: Iterable[str], known: Iterable[str], source: str, kind: str = "setting"
) -> None:
    """Raise for a name that is not known, with the closest known one."""
    candidates = sorted(known)
    for name in names:
        if name not in candidates:
            (closest,) = difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)
            raise SettingError(
                f"unknown {kind} {name!r} in {source}", hint=f"did you mean {closest}?"
            )


def _pairs(name: str, table: Mapping[str, Any]) -> list[str]:
    """A table as the pairs of `--config`, whose values are JSON, or of `--env`."""
    if name == "env":
        return [f"{key}={value}" for key, value in table.items()]
    return [f"{key}={msgspec.json.encode(value).decode()}" for key, value in table.items()]
