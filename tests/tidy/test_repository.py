"""Guards what a fresh clone relies on: one test command, locked requirements that name no host,
and no file that only makes sense on one machine."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = [ROOT / "requirements" / "run.txt", ROOT / "requirements" / "test.txt"]
HOME_FOLDER = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w")
ADDRESS = re.compile(
    r"://|^\s*(?:-f|-i|--\w*-?index\w*|--find-links|--trusted-host)|\s@\s", re.MULTILINE
)


def entries(lock: Path) -> dict[str, str]:
    """Each locked package with the lines of its entry."""
    texts = re.split(r"^(?=\w)", lock.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {re.split(r"[=\s]", text, maxsplit=1)[0]: text for text in texts}


def pins(lock: Path) -> dict[str, str]:
    return {name: entry.split()[0] for name, entry in entries(lock).items()}


def tracked_files() -> list[Path]:
    """Tracked and new files, also in a folder that another user owns."""
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    wanted = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run([*git, *wanted], check=True, capture_output=True, text=True)
    files = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def test_ci_runs_make_test_and_nothing_else():
    script = ROOT / ".ci" / "run"
    commands = script.read_text("utf-8").splitlines()
    assert os.access(script, os.X_OK)
    assert commands[1:] == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]


def test_ci_workflow_runs_the_same_command():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert re.findall(r"^ +- run: (.*)$", workflow, re.MULTILINE) == [".ci/run"]


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_files_that_a_root_document_names_exist(document):
    text = (ROOT / document).read_text("utf-8")
    named = re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]*\w)`", text)
    named += re.findall(r"\]\(((?!http)[^)#]+)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locked_requirements_name_no_host(lock):
    assert ADDRESS.findall(lock.read_text("utf-8")) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locked_requirements_are_pinned_with_hashes(lock):
    locked = entries(lock)
    assert locked
    assert [
        name
        for name, entry in locked.items()
        if not re.match(r"[\w.-]+==[\w.]+", entry) or "--hash=sha256:" not in entry
    ] == []


def test_the_locks_agree_with_each_other_and_cover_the_project():
    run, test = (pins(lock) for lock in LOCKS)
    assert run.items() <= test.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    server = project["project"]["optional-dependencies"]["server"]
    own = [need for need in server if not need.startswith("strata-runtime")]
    wanted = project["project"]["dependencies"] + own + project["dependency-groups"]["build"]
    for lock, needs in ((run, wanted), (test, wanted + project["dependency-groups"]["test"])):
        assert {re.match(r"[\w-]+", need)[0] for need in needs} <= lock.keys()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout to know what is tracked")
def test_no_file_names_a_home_folder():
    files = tracked_files()
    assert Path(__file__) in files
    assert [
        str(file.relative_to(ROOT))
        for file in files
        if HOME_FOLDER.search(file.read_text("utf-8", errors="replace"))
    ] == []


@pytest.mark.parametrize("text", ["see /{}/ann/x", "path=/{}/ann"])
@pytest.mark.parametrize("folder", ["home", "root", "Users"])
def test_the_checker_sees_a_home_folder(text, folder):
    assert HOME_FOLDER.search(text.format(folder))


@pytest.mark.parametrize(
    "line", ["--index-url x", "--extra-index-url x", "--find-links x", "a @ file:x", "https://x"]
)
def test_the_checker_sees_an_address(line):
    assert ADDRESS.search(f"numpy==1.0\n{line}")
