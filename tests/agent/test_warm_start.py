"""Workers forked from a template behave like new processes, and are not forked in doubt."""

import json
import os
import signal
import sys

import psutil
import pytest

from strata.agent.warm_start import Launch, Template
from strata.agent.worker_plan import Start
from tests.agent.conftest import running, said, until
from tests.agent.harness import TRAIN, Agent, Api, worker_pids
from tests.agent.harness import until as wait_until
from tests.coordinator.process import process

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="templates need Linux"),
]

REPORT = """
import fractions
import json, os, resource, signal, sys, threading
names = dict(globals())
print(json.dumps({
    "globals": sorted(names),
    "values": {n: repr(names[n]) for n in ("__name__", "__file__", "__spec__", "__package__",
                                           "__cached__", "__doc__", "__annotations__")},
    "loader": type(__loader__).__name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags),
    "cwd": os.getcwd(),
    "environment": dict(os.environ),
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "umask": os.umask(0o22),
    "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.seekable(), s.isatty())
                for s in (sys.stdout, sys.stderr)],
    "stdin": [os.readlink("/proc/self/fd/0"), sys.stdin.read()],
    "fds": sorted(os.path.basename(os.path.dirname(os.readlink(f"/proc/self/fd/{n}")))
                  for n in range(3, 30) if os.path.exists(f"/proc/self/fd/{n}")),
    "signals": {int(s): str(signal.getsignal(s)) for s in signal.valid_signals()},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": [t.name for t in threading.enumerate()],
    "cmdline": open("/proc/self/cmdline").read(),
    "environ": sorted(open("/proc/self/environ").read().split("\\0")),
    "nice": os.nice(0),
}))
"""

FOREVER = "import time\nprint('ready')\nwhile True:\n    time.sleep(0.05)\n"


@pytest.fixture
def warm(watching, script):
    """Start a task `t` whose next worker is forked; a supervisor with its template."""

    class Warm:
        def __init__(self, watched):
            self.watched = watched
            self.templates = watched.supervisor._templates

        async def ready(self, file, **given):
            """Start the first worker as a new process and wait for the template."""
            self.watched.want(file, ("w", 1), grace_s=0.1, **given)
            (pid,) = await until(self.templates.pids, "a template")
            return pid

        def parent(self, worker="w", number=2):
            """The parent pid of a running worker."""
            child = self.watched.supervisor._children[Start("t", worker, number)]
            return psutil.Process(child.record.pid).ppid()

    return Warm


async def exited(warm, file, number, **given):
    """The exit of a forked worker, started after the first one was ended."""
    warm.watched.want(file, ("w", number), grace_s=0.1, **given)
    return await warm.watched.exit("w", number)


async def test_replacement_is_forked_from_the_template(watching, script, warm, caplog):
    caplog.set_level("INFO")
    file = script(FOREVER)
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        template = await warm.ready(file)
        assert warm.parent(number=1) == os.getpid()
        os.killpg(watched.supervisor.pids()["w"], signal.SIGKILL)
        await watched.exit("w", 1)
        watched.want(file, ("w", 2))
        assert warm.parent() == template
        assert list(watched.supervisor.pids()) == ["w"]
        await until(lambda: watched.lines().count("ready") == 2)
        assert f"started w (start 2) from template {template}" in caplog.text
    assert not running(template)


async def test_script_cannot_tell_that_it_was_forked(watching, script, warm, tmp_path):
    file = script(REPORT)
    given = {"args": ["--lr", "a b"], "working_dir": str(tmp_path), "environment": {"A": "ü"}}
    async with watching(warm_after_s=0.01, cards=[["3"], ["4"]]) as watched:
        warm = warm(watched)
        template = await warm.ready(file, **given)
        first = await until(lambda: said(watched.lines()))
        watched.written.clear()
        assert (await exited(warm, file, 2, **given)).code == 0
        second = await until(lambda: said(watched.lines()))
        assert warm.templates.pids() == [template]
    for own in ("STRATA_START", "STRATA_SPOOL_DIR"):
        assert first["environment"].pop(own) != second["environment"].pop(own)
    for report in (first, second):
        shown = {each for each in report.pop("environ") if not each.startswith("STRATA_S")}
        assert shown - {""} == {f"{k}={v}" for k, v in report["environment"].items()}
        assert report["environment"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert first == second


async def test_exit_codes_and_signals_of_forked_workers_are_reported(watching, script, warm):
    file = script(
        "import os, signal, sys, time\n"
        "how = os.environ['STRATA_START']\n"
        "if how == '2': sys.exit(7)\n"
        "if how == '3': os.kill(os.getpid(), signal.SIGKILL)\n"
        "if how == '4': raise ValueError('of this script')\n"
        "if how == '5': raise KeyboardInterrupt\n"
        "if how == '6': sys.exit('a message')\n"
        "time.sleep(600)\n"
    )
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        await warm.ready(file)
        codes = {}
        for number in (2, 3, 4, 5, 6):
            ended = await exited(warm, file, number)
            codes[number] = (ended.code, ended.signal)
        await until(lambda: "a message" in watched.lines())
        assert codes == {2: (7, 0), 3: (137, 9), 4: (1, 0), 5: (130, 2), 6: (1, 0)}
        trace = watched.lines()
        begin = trace.index("Traceback (most recent call last):")
        assert trace[begin + 1].strip() == f'File "{file}", line 5, in <module>'
        frames = trace[begin : trace.index("ValueError: of this script")]
        assert sum(line.startswith("  File") for line in frames) == 1


async def test_sigterm_reaches_a_forked_worker_and_everything_in_its_group(watching, script, warm):
    file = script(
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps({'child': child.pid}))\ntime.sleep(600)\n"
    )
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        await warm.ready(file)
        await until(lambda: said(watched.lines()))
        watched.written.clear()
        watched.want(file, ("w", 2), grace_s=0.1)
        await watched.exit("w", 1)
        child = (await until(lambda: said(watched.lines())))["child"]
        watched.want_nothing()
        assert (await watched.exit("w", 2)).signal == signal.SIGTERM
        await until(lambda: not running(child))


async def test_multiprocessing_works_in_a_forked_worker(watching, script, warm):
    file = script(
        "import multiprocessing, os, time\n"
        "def square(x):\n    return x * x\n"
        "if __name__ == '__main__':\n"
        "    for how in ('spawn', 'fork', 'forkserver'):\n"
        "        with multiprocessing.get_context(how).Pool(1) as pool:\n"
        "            print(how, pool.map(square, [2, 3]))\n"
    )
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        await warm.ready(file)
        await until(lambda: len(watched.lines()) == 3)
        assert (await exited(warm, file, 2)).code == 0
        await until(lambda: len(watched.lines()) == 6)
        assert watched.written == 2 * [f"{how} [4, 9]" for how in ("spawn", "fork", "forkserver")]


async def test_random_numbers_differ_between_forked_workers(watching, script, warm):
    pytest.importorskip("numpy")
    file = script(
        "import json, multiprocessing, random\nimport numpy.random\n"
        "print(json.dumps([random.random(), float(numpy.random.rand()),\n"
        "                  multiprocessing.current_process().authkey.hex()]))\n"
    )
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        template = await warm.ready(file)
        await watched.exit()
        for number in (2, 3):
            assert (await exited(warm, file, number)).code == 0
        drawn = await until(lambda: len(watched.lines()) == 3 and watched.written)
        assert warm.templates.pids() == [template]
        assert all(len(set(each)) == 3 for each in zip(*map(json.loads, drawn), strict=True))


async def test_pyarrow_works_in_a_forked_worker(watching, script, warm):
    pytest.importorskip("pyarrow")
    file = script(
        "import pyarrow.compute\n"
        "print(pyarrow.compute.sum(pyarrow.array(range(1_000_000))))\n"
        "print(pyarrow.table({'x': range(100_000)}).group_by('x').aggregate([]).num_rows)\n"
    )
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        template = await warm.ready(file)
        await watched.exit()
        assert (await exited(warm, file, 2)).code == 0
        assert warm.templates.pids() == [template]
        await until(lambda: watched.lines().count("499999500000") == 2)
        await until(lambda: watched.lines().count("100000") == 2)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import thready", "started 1 threads"),
        ("import opening", "opened socket:"),
        ("import child_starter", "started a process"),
        ("import jax", "jax cannot be forked"),
        ("import broken", "import of broken failed"),
        ("x = (", "cannot be read"),
        ("import outside", "colorsys in the script's folder shadows"),
    ],
)
async def test_template_that_cannot_be_forked_is_refused(
    watching, script, warm, tmp_path, caplog, code, reason
):
    caplog.set_level("INFO")
    installed = tmp_path / "installed"
    installed.mkdir()
    for name, text in {
        "thready": "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "opening": "import socket\ns = socket.socket()",
        "child_starter": "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.DEVNULL)",
        "jax": "",
        "broken": "1 / 0",
        "outside": "import colorsys",
    }.items():
        (installed / f"{name}.py").write_text(text)
    if "outside" in code:
        (tmp_path / "colorsys.py").touch()
    file = script(f"{code}\n{FOREVER}")
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        given = {"environment": {"PYTHONPATH": str(installed)}, "grace_s": 0.1}
        watched.want(file, ("w", 1), **given)
        await until(lambda: reason in caplog.text, reason)
        watched.want(file, ("w", 2), **given)
        await watched.exit()
        await until(lambda: "(start 2) as a new process" in caplog.text)
        assert warm.templates.pids() == []


async def test_script_that_changed_is_started_as_a_new_process(watching, script, warm, caplog):
    caplog.set_level("INFO")
    file = script("print('old')")
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        await warm.ready(file)
        file = script("import time\nprint('new')\ntime.sleep(600)\n")
        watched.want(file, ("w", 2))
        await until(lambda: "new" in watched.lines())
        assert "(start 2) as a new process" in caplog.text
        assert f"{file} has changed" in caplog.text
        await until(warm.templates.pids, "a template of the new script")


async def test_worker_with_another_environment_is_not_forked(watching, script, warm):
    file = script(FOREVER)
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        await warm.ready(file)
        watched.want(file, ("w", 2), environment={"OMP_NUM_THREADS": "7"})
        await watched.exit("w", 1)
        assert warm.parent() == os.getpid()


async def test_template_that_was_killed_is_replaced(watching, script, warm):
    file = script(FOREVER)
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        template = await warm.ready(file)
        os.kill(template, signal.SIGKILL)
        watched.want(file, ("w", 2), grace_s=0.1)
        await watched.exit("w", 1)
        assert warm.parent() == os.getpid()
        (second,) = await until(warm.templates.pids, "another template")
        assert second != template


async def test_worker_survives_its_template_and_its_exit_is_reported(watching, script, warm):
    file = script(FOREVER)
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        template = await warm.ready(file)
        watched.want(file, ("w", 2), grace_s=0.1)
        await watched.exit("w", 1)
        pid = watched.supervisor.pids()["w"]
        os.kill(template, signal.SIGKILL)
        await until(lambda: not running(template))
        assert running(pid)
        os.kill(pid, signal.SIGKILL)
        assert (await watched.exit("w", 2)).code == -1


async def test_forked_worker_is_adopted_by_the_next_agent(watching, script, warm):
    file = script(FOREVER)
    async with watching(warm_after_s=0.01) as first:
        warm = warm(first)
        template = await warm.ready(file)
        first.want(file, ("w", 2), grace_s=0.1)
        await first.exit("w", 1)
        pids = first.supervisor.pids()
        first.supervisor.detach()
        first.supervisor._children.clear()
    assert not running(template)
    async with watching(warm_after_s=0.01) as second:
        assert second.supervisor.pids() == pids
        second.want(file, ("w", 2), grace_s=0.1)
        await until(second.supervisor._templates.pids, "a template of the next agent")
        second.want(file, ("w", 3), grace_s=0.1)
        assert (await second.exit("w", 2)).code == -1
        (pid,) = second.supervisor.pids().values()
        assert [psutil.Process(pid).ppid()] == second.supervisor._templates.pids()


async def test_template_ends_with_its_task(watching, script, warm):
    file = script(FOREVER)
    async with watching(warm_after_s=0.01) as watched:
        warm = warm(watched)
        template = await warm.ready(file)
        watched.want(file, ("w", 2), grace_s=0.1)
        await watched.exit("w", 1)
        watched.want_nothing()
        # It has to tell the exit code first.
        assert (await watched.exit("w", 2)).signal == signal.SIGTERM
        await until(lambda: not running(template))


async def test_forked_worker_whose_agent_died_before_it_was_recorded_runs_nothing(tmp_path, script):
    file = script("open('ran', 'w')")
    launch = Launch(str(file), [], dict(os.environ), str(tmp_path))
    template = Template(launch)
    await until(lambda: template.ready)
    null = os.open(os.devnull, os.O_WRONLY)
    waiting, go = os.pipe()
    pid = template.start(launch, [null, null], waiting)
    os.close(go)
    assert template.exit_code(pid) == 1
    template.close()
    os.close(waiting)
    os.close(null)
    assert not (tmp_path / "ran").exists()


async def test_no_template_is_made_for_a_module_or_a_program(watching, script):
    async with watching(warm_after_s=0.001) as watched:
        watched.want("json.tool", ("w", 1), args=["--help"])
        await watched.exit()
        watched.want("/bin/true", ("w", 2))
        await watched.exit("w", 2)
        assert not watched.supervisor._templates._timers
        assert watched.supervisor._templates.pids() == []


def test_templates_end_when_their_agent_is_killed(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    with process(tmp_path) as coordinator:
        agent = Agent(tmp_path, coordinator.address, 2, STRATA_WARM_STARTS_AFTER_S="0.1")
        try:
            api = Api(coordinator)
            task = api.submit(tmp_path / "train.py", 2)
            api.reaches(task, "running")
            found = wait_until(lambda: _templates_of(agent), "a template")
            workers = worker_pids(tmp_path)
            os.kill(workers[f"{task}-w1"], signal.SIGKILL)
            wait_until(lambda: "(start 2) from template" in agent.said())
            api.reaches(task, "running")
            agent.kill()
            wait_until(lambda: not any(map(running, found)), "the template's end")
            assert set(worker_pids(tmp_path)) == set(workers)
            agent.start()
            wait_until(lambda: agent.said().count("adopted") == 2, "adoption")
            (tmp_path / "finish").touch()
            api.reaches(task, "completed")
        finally:
            agent.close()


def _templates_of(agent):
    ready = "is ready" in agent.said()
    children = psutil.Process(agent.process.pid).children()
    return ready and [each.pid for each in children if "fork_server" in " ".join(each.cmdline())]
