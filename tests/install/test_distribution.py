"""Guards the files of a release: the wheel and the source archive carry the built page, tools that
run a command from a wheel can run it, and the source tree runs without being installed."""

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from strata import __version__
from tests.install.environments import ROOT, UV, call, install

SCRIPT = """
import strata

with strata.join() as run:
    while run.steps < 2:
        with run.step():
            pass
"""
PAGE = [file for file in (ROOT / "src" / "strata" / "webui").rglob("*") if file.is_file()]
DEMO = [file for file in (ROOT / "src/strata/timeline/archive/demo").rglob("*") if file.is_file()]
WANTED = [*PAGE, *DEMO, ROOT / "src/strata/py.typed", ROOT / "src/strata/wire/v1/coordinator.binpb"]


def test_wheel_carries_the_page(distribution):
    with zipfile.ZipFile(distribution.wheel) as wheel:
        names = set(wheel.namelist())
    assert any(file.name == "index.html" for file in PAGE)
    missing = [file for file in WANTED if str(file.relative_to(ROOT / "src")) not in names]
    assert missing == []
    assert not [name for name in names if not name.startswith(("strata/", "dtruntime/", "strata_"))]


def test_source_archive_carries_the_page(distribution):
    top = distribution.sdist.name.removesuffix(".tar.gz")
    with tarfile.open(distribution.sdist) as archive:
        names = set(archive.getnames())
    assert [file for file in WANTED if f"{top}/{file.relative_to(ROOT)}" not in names] == []


@pytest.mark.timeout(300)
def test_uvx_runs_the_command_of_the_wheel(distribution, tmp_path):
    said = call(
        *UV, "tool", "run", "--from", distribution.wheel, "strata", "--version", cwd=tmp_path
    )
    assert said.strip() == f"strata {__version__}"


@pytest.mark.timeout(300)
def test_source_tree_trains_without_being_installed(tmp_path):
    made = install(
        tmp_path / "env", Path(sys.executable), None, resolution="highest", extras=("server",)
    )
    asked = [
        made.program("python"),
        "-c",
        "from importlib.metadata import version as v; v('strata-runtime')",
    ]
    with pytest.raises(AssertionError, match="PackageNotFoundError"):
        call(*asked)
    source = f"PYTHONPATH={ROOT / 'src'}"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, "utf-8")
    strata = ["env", source, made.program("python"), "-m", "strata"]
    assert "2 steps" in call(*strata, "run", script, "--workers", "2", cwd=tmp_path)
