"""`strata top` with a real coordinator, real workers, and a real terminal."""

import asyncio
import os
import pty
import select
import subprocess
import sys
import termios
import time

import pytest
from textual.widgets import DataTable, Static

from strata.cli.support.rest_client import Api as Client
from strata.cli.support.top.detail_screen import DetailScreen
from strata.cli.support.top.live_mirror import StepRates
from strata.cli.support.top.top_app import TopApp
from tests.agent.harness import Agent, Api, environment, until
from tests.coordinator.process import STRATA, process

pytestmark = pytest.mark.timeout(300)

QUICK = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 60.0, "stop_grace_s": 10.0}
LOSSES = """
import time, strata
with strata.join() as run:
    print("a line of", run.worker_id)
    while run.steps < run.config.get("steps", 10**9):
        time.sleep(0.05)
        try:
            if not run.mark_step(loss=10.0 / (run.steps + 1)):
                break
            run.log(loss=10.0 / run.steps)
        except strata.GenerationChanged:
            run.sync()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "first.py").write_text(LOSSES, "utf-8")
    (folder / "second.py").write_text(LOSSES, "utf-8")
    with process(folder, **QUICK) as coordinator:
        agent = Agent(folder, coordinator.address, 3)
        api = Api(coordinator)
        try:
            done = api.submit(folder / "first.py", 1, config={"steps": 3})
            until(lambda: api.task(done)["status"] == "completed", "the end of a task", 100)
            running = api.submit(folder / "second.py", 2)
            until(lambda: api.task(running)["committed_steps"] > 5, "steps", 100)
            yield coordinator, done, running
        finally:
            agent.close()


async def seen(pilot, condition, what, wait_s=60.0):
    """Wait until the screen shows something."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} is not shown:\n{drawn(pilot.app)}"
        await pilot.pause(0.05)


async def shows(pilot, text):
    """Wait until a text is on the screen."""
    await seen(pilot, lambda: text in drawn(pilot.app), repr(text))


def drawn(app):
    """The text of every line of the screen."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def rows(app):
    table = app.query_one("#rows", DataTable)
    return [[cell.plain for cell in table.get_row_at(at)] for at in range(table.row_count)]


def watching(coordinator, size, script):
    """Run a script against the view."""

    async def run():
        app = TopApp(Client(coordinator.http_url))
        async with app.run_test(size=size) as pilot:
            await script(app, pilot)

            await app._shutdown()
            app.show()  # for a message that arrived while the view closed

    asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 24), (180, 50)])
def test_view_shows_tasks_workers_loss_and_facts_at_any_size(cluster, size):
    coordinator, done, running = cluster

    async def script(app, pilot):
        await seen(pilot, lambda: done in drawn(app), "the task that completed")
        views = ("1 Tasks", "2 Workers", "3 GPUs", "4 Barriers", "5 Checkpoints", "6 Facts")
        for text in (
            running,
            "● connected",
            *views,
            "Filter",
            "Sort by",
            "Reverse",
            "Open",
            "Quit",
        ):
            await shows(pilot, text)
        await seen(pilot, lambda: "▁" in drawn(app), "the loss as a sparkline")
        await shows(pilot, f"loss of {running}")
        await seen(pilot, lambda: "/s" in rows(app)[0][3], "the step rate")
        assert app.mirror.facts
        await pilot.press("2")
        await seen(pilot, lambda: f"{running}-w1" in drawn(app), "the worker")
        by_id = {row[0]: row for row in rows(app)}
        assert by_id[f"{running}-w0"][2] in ("0", "1"), "its rank"
        before = int(by_id[f"{running}-w0"][3].replace(",", ""))
        await seen(
            pilot,
            lambda: int({r[0]: r for r in rows(app)}[f"{running}-w0"][3].replace(",", "")) > before,
            "another step",
        )
        assert all(len(line) <= size[0] for line in drawn(app).splitlines())

    watching(coordinator, size, script)


def test_unknown_values_are_not_shown_as_zero(cluster):
    coordinator, done, _ = cluster

    async def script(app, pilot):
        await seen(pilot, lambda: len(rows(app)) == 2, "both tasks")
        ended = next(row for row in rows(app) if row[0] == done)
        assert (ended[3], ended[6]) == ("–", "–"), "no rate and no checkpoint are known"
        await pilot.press("3")
        await seen(pilot, lambda: "no GPU was measured" in drawn(app), "that there is no GPU")
        await pilot.press("5")
        await seen(pilot, lambda: "no checkpoint was recorded" in drawn(app), "no checkpoint")

    watching(coordinator, (100, 30), script)


def test_rate_is_unknown_until_two_steps_were_seen():
    rates = StepRates()
    assert rates.rate("w", 1_000) is None
    rates.note("w", 7, 1_000)
    assert rates.rate("w", 60_000) is None
    rates.note("w", 9, 61_000)
    assert rates.rate("w", 61_000) == pytest.approx(2 / 60)
    rates.note("w", 2, 62_000)  # a recovery
    assert rates.rate("w", 90_000) is None


def test_rows_are_sorted_and_filtered(cluster):
    coordinator, done, running = cluster

    async def script(app, pilot):
        await seen(pilot, lambda: done in drawn(app) and running in drawn(app), "both tasks")
        await seen(pilot, lambda: [row[0] for row in rows(app)] == [running, done], "newest first")
        await pilot.press("s")
        await seen(pilot, lambda: [row[0] for row in rows(app)] == [done, running], "by name")
        await shows(pilot, "task▲")
        await pilot.press("r")
        await seen(pilot, lambda: [row[0] for row in rows(app)] == [running, done], "reversed")
        await pilot.press("slash", *"compl", "enter")
        await seen(pilot, lambda: [row[0] for row in rows(app)] == [done], "the one that completed")
        await shows(pilot, "rows with 'compl'")
        await pilot.press("escape")
        await seen(pilot, lambda: len(rows(app)) == 2, "all rows")
        await pilot.press("slash", *"nothing has this")
        await seen(pilot, lambda: "no row contains 'nothing has this'" in drawn(app), "no row")

    watching(coordinator, (110, 30), script)


def test_task_and_worker_open_with_state_facts_and_log(cluster):
    coordinator, _, running = cluster

    async def script(app, pilot):
        await seen(pilot, lambda: running in drawn(app), "the task")
        await pilot.press("enter")
        await seen(pilot, lambda: isinstance(app.screen, DetailScreen), "the task")
        await seen(pilot, lambda: f"a line of {running}-w0" in drawn(app), "the log")
        await seen(pilot, lambda: "▁" in drawn(app), "the loss")
        await shows(pilot, "● running")
        await shows(pilot, "generation 1")
        told = "went from starting to running"
        await seen(pilot, lambda: told in text_of(app, "#event_lines"), "its facts")
        await pilot.press("escape")
        await shows(pilot, "1 Tasks")
        await pilot.press("2")
        await seen(pilot, lambda: f"{running}-w0" in drawn(app), "the workers")
        await pilot.press("slash", *f"{running}-w1", "enter")
        await seen(pilot, lambda: [row[0] for row in rows(app)] == [f"{running}-w1"], "the worker")
        await pilot.press("enter")
        await seen(pilot, lambda: isinstance(app.screen, DetailScreen), "the worker")
        await seen(pilot, lambda: f"a line of {running}-w1" in drawn(app), "its log")
        await shows(pilot, "incarnation")
        assert f"a line of {running}-w0" not in drawn(app)
        await pilot.press("slash", "s", "r", "3")  # the keys of the tables do nothing here
        assert isinstance(app.screen, DetailScreen)
        await seen(pilot, lambda: "Filter" not in drawn(app), "no key of the tables")
        await pilot.press("q")

    watching(coordinator, (120, 40), script)


def text_of(app, name):
    return str(app.screen.query_one(name, Static).content)


def test_view_reconnects_and_says_since_when_it_is_disconnected(tmp_path):
    with process(tmp_path, **QUICK) as coordinator:

        async def script(app, pilot):
            await seen(pilot, lambda: "● connected" in drawn(app), "the connection")
            coordinator.kill()
            await seen(pilot, lambda: "disconnected since" in drawn(app), "the broken connection")
            assert "● connected" not in drawn(app)
            await asyncio.to_thread(coordinator.start)
            app.api.port = int(coordinator.http_url.rpartition(":")[2])
            await seen(pilot, lambda: "● connected" in drawn(app), "the new connection")
            task = Api(coordinator).post("/tasks", name="later")["task_id"]
            await seen(pilot, lambda: task in drawn(app), "a task of the new coordinator")

        watching(coordinator, (100, 30), script)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words, **variables):
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.before = termios.tcgetattr(theirs)
        self.theirs, self.output = theirs, b""
        self.process = subprocess.Popen(
            [*STRATA, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm-256color", **variables) | {"COLUMNS": "", "LINES": ""},
            start_new_session=True,
        )

    def shows(self, wanted, wait_s=60.0):
        """Wait for some output."""
        deadline_s = time.monotonic() + wait_s
        while wanted not in self.output:
            assert time.monotonic() < deadline_s, self.output[-2000:]
            self.read()

    def read(self):
        if select.select([self.ours], [], [], 0.1)[0]:
            self.output += os.read(self.ours, 65_536)

    def ends(self):
        while self.process.poll() is None:
            self.read()
        self.read()
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal():
    opened = []

    def start(*words, **variables):
        opened.append(Terminal(*words, **variables))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_quit_restores_the_terminal(cluster, terminal):
    coordinator, _, running = cluster
    shown = terminal("top", "--url", coordinator.http_url)
    shown.shows(running.encode())
    assert b"\x1b[?1049h" in shown.output, "it draws on the alternate screen"
    os.write(shown.ours, b"2")
    shown.shows(f"{running}-w1".encode())
    os.write(shown.ours, b"q")
    assert shown.ends() == 0
    assert b"\x1b[?1049l" in shown.output
    assert b"\x1b[?25h" in shown.output, "the cursor is visible again"
    assert termios.tcgetattr(shown.theirs) == shown.before
    assert b"\x1b[38;2;" not in shown.output, "only the terminal's own colours are used"


def test_wrong_address_is_an_error_and_not_a_view(terminal):
    shown = terminal("top", "--url", "http://127.0.0.1:1")
    assert shown.ends() == 5
    assert b"\x1b[?1049h" not in shown.output


def test_top_without_textual_says_what_to_install():
    hidden = "import sys; sys.modules['textual'] = None; from strata.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", hidden, "top"], capture_output=True, text=True, env=environment()
    )
    assert found.returncode != 0
    assert "strata-runtime[top]" in found.stderr
