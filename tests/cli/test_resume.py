"""Guards `strata run --resume` where it cannot simply continue: nothing to continue, a run that is
still active, a changed model, a damaged or deleted checkpoint."""

import json
import shutil

import pytest

from strata.cli.support.exit_codes import FAILED, INTERRUPTED, NOT_FOUND, REFUSED
from strata.launch import run_notes
from tests.cli.conftest import strata, until
from tests.cli.runs import run, script, seen, url_of

WAIT_S = 60.0

TRAINING = """
import time
import numpy as np
import strata

with strata.join(checkpoint_every=4) as run:
    width = run.config.get("width", 2)
    state = run.restore(model={"a": np.zeros((3, width)), "b": np.zeros(width), "c": np.zeros(1)})
    rows = strata.open_arrays(
        {"x": np.arange(float(run.config.get("rows", 32)))}, name=run.config.get("name", "rows")
    )
    loader = run.batches(rows, global_batch=run.config.get("batch", 8))
    for _ in run.epochs(run.config["epochs"]):
        for batch in loader:
            with run.step():
                state["model"]["c"] += run.average(np.array([batch["x"].sum()]))
            time.sleep(run.config.get("step_s", 0))
"""


@pytest.fixture
def count(folder):
    """Run the script in the folder `kept` to its end: `count("--resume", epochs=2)`."""
    script(folder, TRAINING, "count.py")

    def start(*options, **config):
        given = [f"--config={name}={value}" for name, value in config.items()]
        return run(folder, "count.py", "--data-dir", "kept", *given, *options)

    return start


@pytest.fixture
def endless(folder, started):
    """A run in the folder `kept` that trains until it is stopped."""
    script(folder, TRAINING, "count.py")
    config = ("--config=epochs=100000", "--config=step_s=0.02")
    running = started("count.py", "--data-dir", "kept", *config)
    running.wait_for(seen(" trains"), "training", WAIT_S)
    return running


def checkpoints(folder):
    """The folders of the checkpoints, the newest first."""
    found = (folder / "kept" / "checkpoints").glob("*/*/step-*-*")
    return sorted((each for each in found if each.is_dir()), reverse=True)


def damage(checkpoint):
    """Change every byte of the tensors of a checkpoint."""
    for part in checkpoint.glob("*.safetensors"):
        data = bytearray(part.read_bytes())
        header = 8 + int.from_bytes(data[:8], "little")
        data[header:] = bytes(each ^ 0x55 for each in data[header:])
        part.write_bytes(data)


def test_resume_without_a_run_starts_nothing(folder):
    code, output = run(folder, "train.py", "--resume")
    assert code == NOT_FOUND
    assert "no run of train.py is in strata-data/runs" in output
    assert "leave --resume out to start one" in output
    assert not (folder / "strata-data").exists()


@pytest.mark.parametrize("named", [["--resume=nothing"], ["--resume", "--data-dir", "nothing"]])
def test_resume_of_a_missing_folder_creates_none(folder, named):
    code, output = run(folder, "train.py", *named)
    assert code == NOT_FOUND
    assert "nothing" in output
    assert "Traceback" not in output
    assert not (folder / "nothing").exists()


def test_resume_of_another_task_names_those_that_exist(folder, count):
    assert count(epochs=1)[0] == 0
    code, output = count("--resume=count-7", epochs=2)
    assert code == NOT_FOUND
    assert "there is no task 'count-7' called 'count' to resume" in output
    assert "the tasks are count-1" in output
    code, output = count("--resume", "--name", "other", epochs=2)
    assert code == NOT_FOUND
    assert "there is no task called 'other' to resume" in output
    assert run_notes.read(folder / "kept").status == "completed", "a refused run changed the note"


@pytest.mark.slow
def test_active_run_is_neither_resumed_nor_continued(folder, endless):
    for options in (["--data-dir", "kept", "--resume"], ["--data-dir", "kept"], ["--resume=kept"]):
        code, output = run(folder, "count.py", *options)
        assert code == REFUSED, output
        assert f"the run in kept is still active: process {endless.process.pid}" in output
    url = url_of(endless)
    ended = strata("continue", "count-1", "--url", url, cwd=folder)
    assert ended.returncode == REFUSED
    assert "task 'count-1' is running, so it cannot be continued" in ended.stderr
    unknown = strata("continue", "count-9", "--url", url, cwd=folder)
    assert unknown.returncode == NOT_FOUND
    assert "there is no task 'count-9'" in unknown.stderr
    until(lambda: len(checkpoints(folder)) > 1, WAIT_S)
    fork = strata("fork", "count-1", "--step", "3", "--url", url, cwd=folder)
    assert fork.returncode == NOT_FOUND
    assert "task 'count-1' has no checkpoint of step 3" in fork.stderr
    assert "the nearest are of step" in fork.stderr
    assert endless.end() == INTERRUPTED
    assert "0 losses" in "".join(endless.out)


@pytest.mark.slow
def test_killed_run_is_found_by_its_task(folder, started):
    script(folder, TRAINING, "count.py")
    killed = started("count.py", "--config=epochs=100000", "--config=step_s=0.02")
    killed.wait_for(seen(" trains"), "training", WAIT_S)
    until(lambda: list(folder.rglob("step-*-*.json")), WAIT_S)
    killed.process.kill()
    killed.process.wait(WAIT_S)
    code, output = run(folder, "count.py", "--resume=count-1", "--config=epochs=1")
    assert code == 0, output
    assert "count-1 continues from step" in output


def test_changed_model_is_refused_with_its_tensors(count):
    assert count(epochs=1)[0] == 0
    code, output = count("--resume", "--workers", "2", epochs=2, width=3)
    assert code == FAILED
    # At most once for each worker, without our frames; the first refusal may end the other worker.
    assert 1 <= output.count("run.restore(model=") <= 2
    assert "cannot train: InvalidArgument: 2 tensors do not fit" in output
    assert "2 tensors do not fit: 'model.a' was saved as F64 [3, 2] but would be loaded" in output
    assert "'model.b' was saved as F64 [2]" in output
    assert "restore into the model and optimizer that were saved" in output
    code, output = count("--resume", epochs=2, width=2)
    assert code == 0, output


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rows": 40}, "'rows' has changed since it was registered: total_samples was 32 and is"),
        ({"name": "new"}, "trained loop 0.0.0 on 'rows' before it was continued, and the script"),
        ({"batch": 4}, "asks for something else: a global batch of 4, order global"),
    ],
)
def test_changed_data_is_refused_at_once_with_what_to_do(count, config, said):
    assert count(epochs=1)[0] == 0
    code, output = count("--resume", epochs=2, **config)
    assert code == FAILED
    assert said in output
    assert output.count("run.restore(..., from_=") >= 1
    assert "restart loop" not in output


def test_damaged_checkpoint_is_replaced_by_the_one_before(folder, count):
    assert count(epochs=2)[0] == 0
    newest, before = checkpoints(folder)[:2]
    assert (newest.name[:13], before.name[:13]) == ("step-00000008", "step-00000004")
    damage(newest)
    code, output = count("--resume", epochs=3)
    assert code == 0, output
    assert f"checkpoint {newest.name} failed" in output
    assert "continues from step 4 (checkpoint)" in output
    assert "audit proven" in output


@pytest.mark.slow
def test_deleted_checkpoint_is_waited_for_with_the_command_that_gives_it_up(folder, count, started):
    assert count(epochs=2)[0] == 0
    newest = checkpoints(folder)[0]
    shutil.rmtree(newest)
    resumed = started("count.py", "--data-dir", "kept", "--resume", "--config=epochs=3")
    resumed.wait_for(seen("restore the file, or continue from an older one"), "advice", WAIT_S)
    (command,) = {line.split("older one: strata ")[1] for line in resumed.out if "older" in line}
    ended = strata(*command.split(), cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert resumed.process.wait(WAIT_S) == 0, resumed.out


def test_continued_run_prints_each_change_once(count):
    assert count(epochs=1)[0] == 0
    code, output = count("--resume", epochs=2)
    assert code == 0, output
    assert output.count("continues from step 4") == 1
    assert "changed    config.epochs  1 → 2" in output
    assert output.count("1 → 2") == 1
    assert "0 recoveries" in output


def test_range_of_workers_can_be_given_when_a_run_continues(folder, count):
    assert count("--workers", "2", epochs=1)[0] == 0
    code, output = count("--resume", "--workers", "1:2", epochs=2)
    assert code == 0, output
    assert "changed    elastic  false → true" in output
    assert "changed    min_workers  0 → 1" in output
    code, output = count("--resume", "--workers", "1", epochs=3)
    assert code == 0, output
    assert "changed    elastic  true → false" in output
    assert "changed    min_workers  1 → 0" in output


def test_note_of_an_older_release_is_read(folder, count):
    assert count(epochs=1)[0] == 0
    note = folder / "kept" / run_notes.NOTE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"pid": 1, "host": "other"}))
    code, output = count("--resume", epochs=2)
    assert code == 0, output
