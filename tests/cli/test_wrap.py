"""Guards `--wrap torchrun`: unchanged scripts get the variables that torchrun sets, and when one
of them dies all are started again, in a new generation, from their own checkpoint."""

import json
import os
import re
import signal

import psutil
import pytest

from strata.sdk.torchrun import Seat, variables
from tests.agent.harness import until, worker_pids
from tests.cli.runs import run, script, seen

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Says what it was given; rank 1 fails the first time, after everyone has begun.
PLAIN = f"""
import json, os, sys, time
given = {{name: os.environ[name] for name in {NAMES}}}
print("given", json.dumps(given), flush=True)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"began-{{attempt}}-{{given['RANK']}}", "w").close()
while len([name for name in os.listdir() if name.startswith(f"began-{{attempt}}-")]) < 3:
    time.sleep(0.01)
if attempt == "0":
    if given["RANK"] == "1":
        sys.exit(7)
    time.sleep(600)
print("finished", sys.argv[1:])
"""

TORCH = """
import os, signal, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
step = torch.load("saved.pt")["step"] if os.path.exists("saved.pt") else 0
print(f"rank {dist.get_rank()} of {dist.get_world_size()} from step {step}")
while step < 12:
    ones = torch.ones(1)
    dist.all_reduce(ones)
    step += 1
    if dist.get_rank() == 0:
        torch.save({"step": step}, "saving.pt")
        os.replace("saving.pt", "saved.pt")
    dist.barrier()
    if step == 5 and dist.get_rank() == 1 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
print(f"the sum is {int(ones)} at step {step}")
dist.destroy_process_group()
"""


def test_script_without_torch_gets_the_variables_of_torchrun(folder):
    name = script(folder, PLAIN)
    code, output = run(folder, name, "--wrap", "torchrun", "--workers", "3", "--", "--fast")
    assert code == 0, output
    given = [json.loads(text) for text in re.findall(r"given (\{.*\})", output)]
    first, second = given[:3], given[3:]
    for generation in (first, second):
        assert sorted(each["RANK"] for each in generation) == ["0", "1", "2"]
        assert sorted(each["LOCAL_RANK"] for each in generation) == ["0", "1", "2"]
        assert {each["WORLD_SIZE"] for each in generation} == {"3"}
        assert {each["LOCAL_WORLD_SIZE"] for each in generation} == {"3"}
        assert len({each["MASTER_PORT"] for each in generation}) == 1
    assert first[0]["MASTER_PORT"] != second[0]["MASTER_PORT"]
    assert "was lost: the script ended with exit code 7" in output
    assert output.count("finished ['--fast']") == 3
    assert "1 loss, 1 recovery" in output
    assert not worker_pids(folder)


@pytest.mark.timeout(240)
def test_unchanged_torch_script_survives_the_loss_of_a_rank(folder):
    pytest.importorskip("torch")
    code, output = run(folder, script(folder, TORCH), "--wrap", "torchrun", "--workers", "2")
    assert code == 0, output
    assert "was lost: the script ended with signal 9" in output
    assert re.search(r"rank 0 of 2 from step [45]\b", output)
    assert output.count("the sum is 2 at step 12") == 2
    assert "1 loss, 1 recovery" in output


def test_stop_signal_reaches_the_wrapped_script(folder, started):
    name = script(
        folder,
        "import signal, sys, time\n"
        "def saved(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, saved)\nprint('ready', flush=True)\ntime.sleep(600)\n",
    )
    running = started(name, "--wrap", "torchrun", "--workers", "2")
    running.wait_for(lambda each: sum("ready" in line for line in each.out) == 2, "two scripts")
    assert running.end(signal.SIGINT) == 130
    assert sum("saved" in line for line in running.out) == 2
    assert not worker_pids(folder)


def test_script_of_a_killed_wrapper_is_ended(folder, started):
    name = script(
        folder, "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    running = started(name, "--wrap", "torchrun")
    running.wait_for(seen("pid"), "script")
    orphan = int(re.search(r"pid (\d+)", "".join(running.out))[1])
    os.kill(worker_pids(folder)["script-1-w0"], signal.SIGKILL)
    running.wait_for(lambda each: sum("pid" in line for line in each.out) == 2, "another script")
    until(lambda: not psutil.pid_exists(orphan), "the end of what the killed wrapper ran")
    running.end(signal.SIGINT)


def test_local_ranks_are_counted_by_host():
    seats = [Seat("10.0.0.1", "a", 5), Seat("10.0.0.2", "b", 6), Seat("10.0.0.1", "a", 7)]
    assert [variables(rank, seats)["LOCAL_RANK"] for rank in range(3)] == ["0", "0", "1"]
    assert [variables(rank, seats)["LOCAL_WORLD_SIZE"] for rank in range(3)] == ["2", "1", "2"]
    assert [variables(rank, seats)["GROUP_RANK"] for rank in range(3)] == ["0", "1", "0"]


def test_script_sees_the_cards_of_its_host_and_its_own_at_its_local_rank():
    seats = [
        Seat("10.0.0.1", "a", 5, ("4", "5")),
        Seat("10.0.0.2", "b", 6, ("0",)),
        Seat("10.0.0.1", "a", 7, ("2", "3")),
    ]
    seen = [variables(rank, seats)["CUDA_VISIBLE_DEVICES"] for rank in range(3)]
    assert seen == ["4,2,5,3", "0", "4,2,5,3"]
    assert "CUDA_VISIBLE_DEVICES" not in variables(0, [Seat("10.0.0.1", "a", 5)])
    assert {variables(rank, seats)["MASTER_ADDR"] for rank in range(3)} == {"10.0.0.1"}
    assert {variables(rank, seats)["MASTER_PORT"] for rank in range(3)} == {"5"}
