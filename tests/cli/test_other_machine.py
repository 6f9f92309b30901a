"""`strata run --resume` continues a run on another machine that shares only the object storage.

A machine is a folder of its own here: nothing but the S3 server is in common.
"""

import itertools
import os
import re
import signal
import threading

import msgspec
import pytest

from strata.cli.support.exit_codes import INTERRUPTED, REFUSED
from strata.errors import NotAllowedNow
from strata.launch import run_copies, run_notes
from strata.storage.s3 import S3Storage
from tests.agent.harness import worker_pids
from tests.cli.conftest import Started, until
from tests.cli.runs import run, seen
from tests.cli.test_continue import SCRIPT
from tests.storage.server import BUCKET, KEY, SECRET, running

WAIT_S = 90.0
SECOND_CHECKPOINT = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("s3") / "server") as settings:
        yield settings


@pytest.fixture
def variables(server):
    return {
        "AWS_ENDPOINT_URL": server.aws_endpoint_url,
        "AWS_REGION": server.aws_region,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


@pytest.fixture
def machine(tmp_path):
    """Make the folder of a machine, with the script and an empty data folder."""

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT, "utf-8")
        return folder

    return make


@pytest.fixture
def start(variables):
    begun = []

    def start(folder, *arguments):
        begun.append(Started("run", *arguments, cwd=folder, **variables))
        return begun[-1]

    yield start
    for each in begun:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGCONT)
        each.discard()


def copied_step(server, place):
    """The newest step of a checkpoint that a copied log can restore; 0 without a copy."""
    storage = S3Storage(BUCKET, place, server)
    names = [each.name for each in storage.walk()]
    storage.close()
    copied = any(re.search(r"/log-.*\.db$", name) for name in names)
    found = (re.search(r"/step-(\d+)-\d+\.json", name) for name in names)
    steps = [int(each[1]) for each in found if each]
    return max(steps, default=0) if copied else 0


def test_interrupted_run_continues_elsewhere_with_one_proven_audit(
    server, variables, machine, start
):
    first, second = machine("first"), machine("second")
    root = f"s3://{BUCKET}/interrupted"
    training = start(first, "train.py", "--workers", "2", "--checkpoint-dir", root)
    until(lambda: copied_step(server, "interrupted") >= SECOND_CHECKPOINT, WAIT_S)
    assert training.end(signal.SIGINT) == INTERRUPTED
    (url,) = re.findall(r"on another machine: .*--resume=(\S+)", "".join(training.out))
    code, output = run(second, "train.py", f"--resume={url}", "--workers", "3", **variables)
    assert code == 0, output
    assert re.search(r"task +train-1 continues from step [1-9]", output)
    assert "every sample was seen 6.0 to 6.0 times" in output
    assert "audit proven" in output
    code, output = run(first, "train.py", "--resume", **variables)
    assert code == REFUSED, output
    assert "was continued on" in output
    assert f"--resume={url}" in output
    third = machine("third")
    environment = variables | {"STORAGE_BACKEND": "local", "CHECKPOINT_DIR": root}
    code, output = run(third, "train.py", "--resume", "--epochs", "7", **environment)
    assert code == 0, output
    assert "every sample was seen 7.0 to 7.0 times" in output
    assert "audit proven" in output


@pytest.mark.slow
def test_run_is_taken_over_only_after_its_heartbeat_ended_and_its_process_then_ends(
    server, variables, machine, start
):
    first, second = machine("first"), machine("second")
    root = f"s3://{BUCKET}/paused"
    training = start(first, "train.py", "--checkpoint-dir", root, "--config", "epochs=2000")
    until(lambda: copied_step(server, "paused") >= SECOND_CHECKPOINT, WAIT_S)
    code, output = run(second, "train.py", f"--resume={root}", **variables)
    assert code == REFUSED, output
    assert "is still active on" in output
    stopped = [training.process.pid, *worker_pids(first).values()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    options = (f"--resume={root}", "--config", "epochs=40")
    continued = start(second, "train.py", *options)
    continued.wait_for(seen(" trains"), "training", WAIT_S)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert training.process.wait(WAIT_S) == REFUSED, training.err
    assert "the run was ended here, because" in "".join(training.err)
    assert not worker_pids(first)
    assert continued.process.wait(WAIT_S) == 0, continued.out
    assert "every sample was seen 40.0 to 40.0 times" in "".join(continued.out)
    assert "0 missing, 0 twice" in "".join(continued.out)


def test_run_that_was_resumed_a_moment_ago_is_not_taken_over(server, tmp_path):
    """Its newest claim has no copy yet: the description is that of the run before."""
    storage = S3Storage(BUCKET, "resumed/runs/r", server)
    first, second = (
        run_copies.Claim(number=number, host="a", pid=1, begun_s=0.0) for number in (1, 2)
    )
    for claim in (first, second):
        storage.put(f"claim-{claim.number:08d}.json", msgspec.json.encode(claim))
    ended = run_copies.CopiedRun(
        name="r", note=run_notes.RunNote(entry="train.py"), claim=first, log="log.db", ended=True
    )
    stop = threading.Event()

    def beat():
        for count in itertools.count():
            storage.put("beat-00000002.json", b"%d" % count)
            if stop.wait(0.2):
                return

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(NotAllowedNow, match="still active"):
            run_copies.fetch(storage.url, ended, tmp_path, server)
    finally:
        stop.set()
        beating.join()
        storage.close()
