"""Guards the committed page: it is what its source makes, speaks the API as it is, keeps its rules
and its size."""

import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from strata import __version__
from strata.coordinator.http import page
from strata.coordinator.http.app import document
from tests.programs import program

WEB = Path(__file__).parents[2] / "web"
INITIAL_JS_BYTES = 160_000
CSS_BYTES = 20_000
MODULE_LINES = 300


def npm(*arguments, **variables):
    """Runs a script of the page's; its output is the message when it fails."""
    assert (WEB / "node_modules").is_dir(), "install the packages: make test, or npm ci in web"
    command = [program("npm"), "run", "--silent", *arguments]
    how = {"capture_output": True, "text": True, "timeout": 110, "env": os.environ | variables}
    done = subprocess.run(command, cwd=WEB, **how)
    assert done.returncode == 0, done.stdout + done.stderr


def contents(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_the_committed_page_is_what_its_source_makes(tmp_path):
    npm("build", "--", "--outDir", str(tmp_path / "page"))
    fresh, committed = contents(tmp_path / "page"), contents(page.FOLDER)
    assert sorted(fresh) == sorted(committed), "run make web and commit what it writes"
    assert [name for name in fresh if fresh[name] != committed[name]] == []


def test_its_types_are_those_of_the_api(tmp_path):
    described = tmp_path / "openapi.json"
    described.write_text(json.dumps(json.loads(document(__version__)), indent=1) + "\n", "utf-8")
    fresh = tmp_path / "schema.ts"
    tool = WEB / "node_modules/.bin/openapi-typescript"
    command = [str(tool), str(described), "--output", str(fresh), "--alphabetize"]
    subprocess.run(command, check=True, capture_output=True, timeout=100, cwd=tmp_path)
    committed = WEB / "src/api/schema.ts"
    assert fresh.read_text("utf-8") == committed.read_text("utf-8"), "run make web"


def test_what_is_pure_in_it_is_right():
    npm("test")


def test_it_keeps_its_rules():
    npm("lint")


@pytest.mark.quick
def test_its_modules_are_short():
    sources = [*WEB.glob("src/**/*.ts"), *WEB.glob("src/**/*.tsx")]
    assert len(sources) > 50
    lengths = {file.name: len(file.read_text("utf-8").splitlines()) for file in sources}
    lengths.pop("schema.ts")
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES} == {}


@pytest.mark.quick
def test_what_is_loaded_first_is_small():
    files = page.load()
    html = files["/"].content.decode()
    entry = re.search(r'src="\.(/assets/index-[^"]+\.js)"', html)[1]
    [overview] = [path for path in files if re.match(r"/assets/overview-.*\.js$", path)]
    named = {entry, overview, *imported(files, entry), *imported(files, overview)}
    assert sum(small(files[path]) for path in named) <= INITIAL_JS_BYTES
    assert sum(small(file) for path, file in files.items() if path.endswith(".css")) <= CSS_BYTES


def imported(files, path):
    """What a script imports as it starts; not what it may load later."""
    found = re.findall(r'(?:from|import)\s*"\./([\w.-]+\.js)"', files[path].content.decode())
    return {f"/assets/{name}" for name in found}


def small(file):
    return len(gzip.compress(file.content))
