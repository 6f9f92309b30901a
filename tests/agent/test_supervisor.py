"""The agent's supervisor with real processes: start, end, output and records."""

import os
import signal

import msgspec
import pytest

from strata.agent import agent_records, worker_supervisor
from strata.agent.agent_records import ChildRecord
from strata.agent.worker_plan import Start
from strata.core.workers.stack_reports import StackReport
from strata.sdk.record.line_buffer import LAST_LINES, MAX_LINES
from strata.wire.v1 import coordinator_pb2 as pb
from tests.agent.conftest import running, said, until

pytestmark = pytest.mark.anyio

FOREVER = "import time\nprint('ready')\nwhile True:\n    time.sleep(0.05)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER


async def test_worker_gets_its_identity_from_the_environment(watching, script):
    file = script(
        "import json, os, sys\n"
        "names = ('WORKER_ID', 'STRATA_TASK', 'STRATA_START', 'COORDINATOR_ADDR', 'WORLD_SIZE',\n"
        "         'TASK_CONFIG', 'SECRET')\n"
        "print(json.dumps({n: os.environ.get(n) for n in names} | {'args': sys.argv[1:],\n"
        "      'cwd': os.getcwd()}))\n"
    )
    async with watching() as watched:
        watched.want(
            file,
            ("w", 3),
            args=["--lr", "1"],
            config='{"a": 1}',
            environment={"SECRET": "s"},
            working_dir=str(file.parent),
        )
        assert (await watched.exit("w", 3)).code == 0
        told = await until(lambda: said(watched.lines()))
    assert told == {
        "WORKER_ID": "w",
        "STRATA_TASK": "t",
        "STRATA_START": "3",
        "COORDINATOR_ADDR": "127.0.0.1:1",
        "WORLD_SIZE": "1",
        "TASK_CONFIG": '{"a": 1}',
        "SECRET": "s",
        "args": ["--lr", "1"],
        "cwd": str(file.parent),
    }


async def test_worker_and_its_replacement_get_the_gpus_of_the_slot(watching, script):
    file = script("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n" + FOREVER)
    cards = [["0"], ["1"], ["2"]]
    async with watching(cards=cards) as first:
        first.want(file, ("a", 1), ("b", 1), grace_s=0.1)
        await until(lambda: {"0", "1"} <= set(first.lines()))
        first.supervisor.detach()
        first.supervisor._children.clear()
    async with watching(cards=cards) as second:
        second.want(file, ("a", 2), ("b", 1), ("c", 1), grace_s=0.1)
        await second.exit("a", 1)
        await until(lambda: {"0", "2"} <= set(second.lines()))
        second.want(file, ("d", 1), grace_s=0.1, environment={"CUDA_VISIBLE_DEVICES": "7"})
        await until(lambda: "7" in second.lines())


async def test_exit_code_and_signal_are_reported(watching, script):
    async with watching() as watched:
        watched.want(script("import sys\nsys.exit(7)"), ("w", 1))
        ended = await watched.exit()
        assert (ended.code, ended.signal) == (7, 0)
    async with watching() as watched:
        file = script("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        watched.want(file, ("w", 2))
        ended = await watched.exit("w", 2)
        assert (ended.code, ended.signal) == (137, 9)


async def test_failed_start_is_an_exit_with_the_reason(watching, tmp_path):
    async with watching() as watched:
        watched.want(tmp_path / "no" / "program", ("w", 1))
        assert (await watched.exit()).code == 127
        assert any("cannot be started" in line for line in watched.lines())


async def test_missing_script_is_reported(watching, tmp_path):
    async with watching() as watched:
        watched.want(tmp_path / "nothing.py", ("w", 1))
        assert (await watched.exit()).code == 2
        await until(lambda: any("No such file" in line for line in watched.lines()))


async def test_ended_worker_is_restarted_only_with_a_higher_number(watching, script):
    file = script("print('once')")
    async with watching() as watched:
        watched.want(file, ("w", 1))
        await watched.exit()
        watched.supervisor.settled(Start("t", "w", 1))
        watched.want(file, ("w", 1))
        assert watched.supervisor.running == []
        watched.want(file, ("w", 2))
        await watched.exit("w", 2)


async def test_worker_that_does_not_stop_gets_sigterm(watching, script):
    file = script(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
        "print('ready')\nwhile True:\n    time.sleep(0.05)\n"
    )
    async with watching() as watched:
        watched.want(file, ("w", 1), grace_s=60)
        await until(lambda: "ready" in watched.lines())
        watched.want(file, ("w", 1), grace_s=60, stopping=True)
        assert (await watched.exit()).code == 0
        await until(lambda: "saved" in watched.lines())


async def test_worker_that_ignores_sigterm_is_killed(watching, script):
    async with watching() as watched:
        watched.want(script(STUBBORN), ("w", 1), grace_s=0.2)
        await until(lambda: "ready" in watched.lines())
        watched.want(script(STUBBORN), ("w", 1), grace_s=0.2, stopping=True)
        assert (await watched.exit()).signal == signal.SIGKILL
        await until(lambda: any("did not end within 0.2 s" in line for line in watched.lines()))


async def test_worker_of_a_completed_task_ends_without_a_signal(watching, script):
    file = script("import time\nprint('ready')\ntime.sleep(1.5)\nprint('epilogue')\n")
    async with watching() as watched:
        watched.want(file, ("w", 1), grace_s=20)
        await until(lambda: "ready" in watched.lines())
        watched.want_nothing(completed=["t"])
        assert (await watched.exit()).code == 0
        await until(lambda: "epilogue" in watched.lines())


async def test_unwanted_worker_that_keeps_running_is_ended(watching, script):
    async with watching() as watched:
        watched.want(script(FOREVER), ("w", 1), grace_s=0.2)
        await until(lambda: "ready" in watched.lines())
        watched.want_nothing()
        assert (await watched.exit()).signal == signal.SIGTERM


async def test_higher_start_replaces_a_lower(watching, script):
    async with watching() as watched:
        watched.want(script(STUBBORN), ("w", 1), grace_s=60)
        await until(lambda: "ready" in watched.lines())
        watched.want(script(STUBBORN), ("w", 2), grace_s=60)
        assert (await watched.exit()).signal == signal.SIGKILL
        await until(lambda: watched.supervisor.running == [Start("t", "w", 2)])


async def test_children_of_a_worker_end_with_it(watching, script):
    file = script(
        "import json, os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps({'child': child.pid}), flush=True)\n"
        "os._exit(3)\n"
    )
    async with watching() as watched:
        watched.want(file, ("w", 1))
        child = (await until(lambda: said(watched.lines())))["child"]
        assert (await watched.exit()).code == 3
        await until(lambda: not running(child))


async def test_binary_output_becomes_lines(watching, script):
    file = script("import sys\nsys.stdout.buffer.write(bytes(range(256)) * 40 + b'\\nend\\n')")
    async with watching() as watched:
        watched.want(file, ("w", 1))
        await watched.exit()
        await until(lambda: "end" in watched.lines())


async def test_twenty_megabytes_are_read_without_holding_them_all(watching, script):
    file = script(
        "import sys\nline = 'x' * 99 + '\\n'\n"
        "for _ in range(200):\n    sys.stdout.write(line * 1000)\nprint('end')\n"
    )
    async with watching() as watched:
        watched.want(file, ("w", 1))
        await watched.exit()
        await until(lambda: not watched.supervisor._watching)
        lines = watched.lines()
    assert len(lines) + watched.dropped == 200_001
    assert 0 < len(lines) <= MAX_LINES + LAST_LINES


async def test_next_agent_adopts_workers_and_reads_their_output(watching, script, tmp_path):
    file = script(
        "import os, time\nprint(f'pid {os.getpid()}')\n"
        "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
        "print('x' * 200_000)\nprint('after')\n"
    )
    async with watching() as first:
        first.want(file, ("w", 1), working_dir=str(tmp_path))
        await until(lambda: any(line.startswith("pid") for line in first.lines()))
        first.supervisor.detach()
        first.supervisor._children.clear()
    async with watching() as second:
        assert second.supervisor.running == [Start("t", "w", 1)]
        assert second.supervisor.nonce == first.supervisor.nonce
        second.want(file, ("w", 1), working_dir=str(tmp_path))
        (tmp_path / "go").touch()
        assert (await second.exit()).code == -1
        await until(lambda: "after" in second.lines())


async def test_next_agent_finds_a_worker_without_a_recorded_pid(watching, script):
    async with watching() as first:
        first.want(script(FOREVER), ("w", 1))
        pids = first.supervisor.pids()
        first.supervisor.detach()
        first.supervisor._children.clear()
    known = agent_records.load(first.folder)
    known.children = [ChildRecord(kept.start, kept.key, kept.grace_s) for kept in known.children]
    agent_records.save(first.folder, known)
    async with watching() as second:
        assert second.supervisor.pids() == pids


async def test_reused_pid_is_not_adopted(watching, script):
    async with watching() as first:
        first.want(script("print(1)"), ("w", 1))
        await first.exit()
    known = agent_records.load(first.folder)
    known.children = [ChildRecord(Start("t", "w", 2), "key", 1.0, os.getpid(), 1.0)]
    agent_records.save(first.folder, known)
    async with watching() as second:
        assert second.supervisor.running == []
        assert (await second.exit("w", 2)).code == -1


async def test_next_agent_ends_unwanted_workers(watching, script):
    async with watching() as first:
        first.want(script(FOREVER), ("w", 1), grace_s=0.1)
        await until(lambda: "ready" in first.lines())
        (pid,) = first.supervisor.pids().values()
        first.supervisor.detach()
        first.supervisor._children.clear()
    assert running(pid)
    async with watching() as second:
        second.want_nothing()
        await second.exit()
        assert not running(pid)


async def test_next_agent_reports_an_unseen_exit(watching, script):
    async with watching() as first:
        first.want(script(FOREVER), ("w", 1))
        (pid,) = first.supervisor.pids().values()
        first.supervisor.detach()
        first.supervisor._children.clear()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    async with watching() as second:
        assert (await second.exit()).code == -1


async def test_exits_are_kept_until_acknowledged(watching, script):
    async with watching() as first:
        first.want(script("raise SystemExit(5)"), ("w", 1))
        await first.exit()
    async with watching() as second:
        assert (await second.exit()).code == 5
        second.supervisor.settled(Start("t", "w", 1))
    async with watching() as third:
        assert third.supervisor.exits == {}


async def test_blocked_task_starts_no_worker_until_it_has_its_environment(watching, script):
    file = script("import os\nprint(os.environ['KEY'], flush=True)\n" + FOREVER)
    async with watching() as watched:
        watched.want(file, ("a", 1), environment={"KEY": "one"})
        await until(lambda: "ready" in watched.lines())
        watched.want(file, ("a", 1), ("b", 1), blocked="the environment is being read")
        assert watched.supervisor.running == [Start("t", "a", 1)]
        watched.want(file, ("a", 1), ("b", 1), environment={"KEY": "two"})
        await until(lambda: "two" in watched.lines())
        assert watched.supervisor.running == [Start("t", "a", 1), Start("t", "b", 1)]


async def test_stacks_that_cannot_be_read_are_reported_and_can_be_asked_for_again(
    watching, script, monkeypatch
):
    def refused(*_):
        raise OSError("the disk of the spool failed")

    monkeypatch.setattr(worker_supervisor, "collect", refused)
    async with watching() as watched:
        watched.want(script(FOREVER), ("w", 1))
        await until(lambda: "ready" in watched.lines())
        asked = pb.CollectStacks(task_id="t", collection=1, worker_ids=["w"], limit_ms=1000)
        for count in (1, 2):
            watched.supervisor.collect_stacks(asked)
            await until(lambda count=count: len(watched.supervisor.stacks) == count)
    for sent in watched.supervisor.stacks:
        report = msgspec.json.decode(sent.report, type=StackReport)
        (note,) = report.notes
        assert note == "the agent could not read the stacks: OSError: the disk of the spool failed"
