"""Guards the table of optional libraries: a missing one is reported with the extra that brings it,
and only extras that exist are named."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from strata import extras
from strata.errors import NotFound

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))[
    "project"
]
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
from strata.cli import main
main()
"""


def without(
    modules: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that cannot import the modules."""
    command = [sys.executable, "-c", WITHOUT, modules, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)


def test_every_named_extra_can_be_installed():
    assert {extra.name for extra in extras.EXTRAS} <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("litestar", ("run", "train.py"), "server"),
        ("uvicorn", ("up",), "server"),
        ("duckdb", ("sql", "select 1"), "timeline"),
    ],
)
def test_command_names_the_extra_that_it_lacks(tmp_path, module, arguments, extra):
    (tmp_path / "train.py").touch()
    done = without(module, *arguments, cwd=tmp_path)
    assert f"{module} is not installed" in done.stderr
    assert f"pip install 'strata-runtime[{extra}]'" in done.stderr
    assert done.returncode == 4


def test_missing_library_of_no_extra_is_a_bug_and_keeps_its_traceback():
    done = without("msgspec", "status")
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_check_raises_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotFound, match="storage on S3") as missing:
        extras.check("obstore")
    assert missing.value.hint == "pip install 'strata-runtime[s3]'"
