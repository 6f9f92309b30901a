"""Guards `strata init`: what it writes trains at once; and `[run]` in `strata.toml`."""

import json
from importlib.util import find_spec

import pytest

from strata.cli.init import NEEDS
from tests.cli.conftest import strata
from tests.cli.runs import run, script

SHOWS = (
    "import strata\nwith strata.join() as run:\n    print('config', run.config, run.world_size)\n"
)


def written(folder, *arguments):
    ended = strata("init", *arguments, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_numpy_template_trains_saves_and_continues(tmp_path):
    assert "next: strata run train.py" in written(tmp_path)
    code, output = run(tmp_path, "train.py")
    assert code == 0, output
    assert "accuracy on 2,000 unseen points: 9" in output
    assert "320 steps in" in output
    assert ", 2 workers, 0 losses" in output
    assert "audit proven" in output
    saved = tmp_path.glob("strata-data/runs/*/checkpoints/*/*/step-*.json")
    # Of four that are due, one may be left out while another one is still being written.
    assert 2 <= len(list(saved)) <= 3, "checkpoint_every and keep_count of strata.toml"
    code, output = run(tmp_path, "train.py", "--resume", "--config", "epochs=6", "--workers", "1")
    assert code == 0, output
    assert "continues from step 320" in output
    assert "64 steps in" in output


@pytest.mark.slow
@pytest.mark.parametrize("template", ["torch", "hf", "jax"])
def test_template_of_a_framework_trains(tmp_path, template):
    if find_spec(NEEDS[template]) is None:
        pytest.skip(f"{NEEDS[template]} is not installed")
    written(tmp_path, "project", "--template", template)
    code, output = run(tmp_path / "project", "train.py")
    assert code == 0, output
    assert "0 losses" in output
    last = "trained 19 steps" if template == "hf" else "accuracy on 2,000 unseen points: 9"
    assert last in output


def test_existing_files_are_kept_without_force(tmp_path):
    (tmp_path / "strata.toml").write_text("keep_count = 9\n")
    refused = strata("init", cwd=tmp_path)
    assert refused.returncode == 7
    assert "strata.toml exists already" in refused.stderr
    assert not (tmp_path / "train.py").exists()
    assert (tmp_path / "strata.toml").read_text() == "keep_count = 9\n"
    written(tmp_path, "--force")
    assert "[run]" in (tmp_path / "strata.toml").read_text()


def test_defaults_of_a_run_come_from_the_file_and_options_win(tmp_path):
    (tmp_path / "strata.toml").write_text(
        "data_dir = 'kept'\n[run]\nworkers = 2\n[run.config]\nlr = 0.1\nkind = '5'\n"
    )
    name = script(tmp_path, SHOWS)
    code, output = run(tmp_path, name)
    assert code == 0, output
    assert "config {'lr': 0.1, 'kind': '5'} 2" in output
    assert list(tmp_path.glob("kept/runs/*"))
    code, output = run(tmp_path, name, "--workers", "1", "--config", "lr=1")
    assert code == 0, output
    assert "config {'lr': 1} 1" in output


def test_unknown_option_in_the_file_is_refused_with_its_line(tmp_path):
    (tmp_path / "strata.toml").write_text("keep_count = 2\n\n[run]\nworker = 2\n")
    ended = strata("run", script(tmp_path, SHOWS), "--json", cwd=tmp_path)
    assert ended.returncode == 2
    assert "strata.toml, line 4" in ended.stderr + json.dumps(ended.stdout)
    code, output = run(tmp_path, "script.py")
    assert code == 2
    assert "unknown option of `strata run` 'worker' in strata.toml, line 4" in output
    assert "did you mean workers?" in output
