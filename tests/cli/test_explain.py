"""Guards `strata explain`: each word, setting, event and exit code has a text, also in a wheel."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from strata.cli.support.texts.explanations import explanations, find
from strata.config import FIELDS
from strata.core.record.event_codec import CODEC
from strata.errors import NotFound
from tests.cli.conftest import strata
from tests.cli.runs import python_without

ROOT = Path(__file__).parents[2]


def test_all_settings_events_and_codes_are_explained():
    known = explanations()
    words = {
        kind: {each.word for each in known if each.kind == kind} for kind in ("event", "setting")
    }
    glossary = (ROOT / "docs" / "GLOSSARY.md").read_text("utf-8")
    assert sum(each.kind == "word" for each in known) == glossary.count("\n### ")
    assert words["event"] == {kind.__name__ for kind in CODEC.kinds.values()}
    internal = FIELDS.keys() - words["setting"]
    assert words["setting"] <= FIELDS.keys()
    assert internal < FIELDS.keys() - {"grpc_port", "checkpoint_every", "alert_no_step_s"}
    for each in known:
        assert each.text, each.word
        assert "](" not in each.text, "links are shown as text"


@pytest.mark.parametrize(
    ("wanted", "word", "text"),
    [
        ("generation", "generation", "The members of a task"),
        ("Barrier-Rounds", "barrier round", "each use is a round"),
        ("grpc_port", "grpc_port", "STRATA_GRPC_PORT"),
        ("WorkerLost", "WorkerLost", "A worker was declared lost"),
        ("94", "94", "its final checkpoint failed"),
    ],
)
def test_word_is_found(wanted, word, text):
    (found,) = find(wanted, explanations())
    assert found.word == word
    assert text in found.text


def test_unknown_word_suggests_similar_ones(tmp_path):
    ended = strata("explain", "genration", cwd=tmp_path)
    assert ended.returncode == 4
    assert "did you mean generation" in ended.stderr
    with pytest.raises(NotFound) as error:
        find("xyzzy", explanations())
    assert error.value.hint == "strata explain lists the words"


def test_words_may_be_given_without_quotes_and_as_json(tmp_path):
    ended = strata("explain", "barrier", "round", "--json", cwd=tmp_path)
    assert json.loads(ended.stdout)["kind"] == "word"
    assert "incarnation, lane" in strata("explain", cwd=tmp_path).stdout


def test_wheel_contains_the_texts(tmp_path):
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "LICENSE", "docs/GLOSSARY.md", "docs/SETTINGS.md"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    skipped = shutil.ignore_patterns("webui", "docs_site", "__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    python, variables = python_without(tmp_path, "strata")
    variables["PYTHONPATH"] = f"{tmp_path}/installed:{tmp_path}/packages"
    for arguments in (["explain", "generation"], ["init", "project", "--template", "hf"]):
        command = [python, "-m", "strata", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert "strata.torch.train" in (tmp_path / "project" / "train.py").read_text("utf-8")
