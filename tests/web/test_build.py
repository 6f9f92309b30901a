"""Guards the committed page: built from its source and the types of the API, linted and small."""

import gzip
import re

import pytest

from strata.cli import build_app
from strata.coordinator.rest import page_files
from tests.web.conftest import WEB, npm

INITIAL_JS_BYTES = 160_000
CSS_BYTES = 20_000
MODULE_LINES = 300


def contents(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.mark.usefixtures("api_types")
def test_committed_page_equals_a_fresh_build(tmp_path):
    npm("build", "--", "--outDir", str(tmp_path / "page"))
    fresh, committed = contents(tmp_path / "page"), contents(page_files.FOLDER)
    assert sorted(fresh) == sorted(committed), "run make generate and commit what it writes"
    assert [name for name in fresh if fresh[name] != committed[name]] == []


@pytest.mark.usefixtures("api_types")
def test_vitest_passes():
    npm("test")


@pytest.mark.usefixtures("api_types")
def test_lint_passes():
    npm("lint")


@pytest.mark.quick
def test_modules_are_short():
    sources = [*WEB.glob("src/**/*.ts"), *WEB.glob("src/**/*.tsx")]
    assert len(sources) > 50
    lengths = {file.name: len(file.read_text("utf-8").splitlines()) for file in sources}
    lengths.pop("schema.ts", 0)
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES} == {}


@pytest.mark.quick
def test_shown_commands_exist():
    text = "".join(file.read_text("utf-8") for file in WEB.glob("src/**/*.ts*"))
    shown = set(re.findall(r'"strata ([a-z]+)', text))
    assert shown
    assert shown <= {command.name for command in build_app().registered_commands}


@pytest.mark.quick
def test_initial_download_is_small():
    files = page_files.load()
    html = files["/"].content.decode()
    entry = re.search(r'src="\.(/assets/index-[^"]+\.js)"', html)[1]
    [overview] = [path for path in files if re.match(r"/assets/overview-.*\.js$", path)]
    named = {entry, overview, *imported(files, entry), *imported(files, overview)}
    assert sum(compressed_bytes(files[path]) for path in named) <= INITIAL_JS_BYTES
    assert (
        sum(compressed_bytes(file) for path, file in files.items() if path.endswith(".css"))
        <= CSS_BYTES
    )


def imported(files, path):
    """The scripts that a script imports at its start, without the ones it loads later."""
    found = re.findall(r'(?:from|import)\s*"\./([\w.-]+\.js)"', files[path].content.decode())
    return {f"/assets/{name}" for name in found}


def compressed_bytes(file):
    return len(gzip.compress(file.content))
