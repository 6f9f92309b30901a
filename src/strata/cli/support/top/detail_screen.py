"""The screen of one task or worker: its state, its last facts, and the end of its log."""

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from strata.cli.support.charts.terminal_chart import sparkline
from strata.cli.support.charts.watched_curves import on_log_scale
from strata.cli.support.tables import ago, clock, count, plain, size, state
from strata.cli.support.top.live_feed import Details, Subject
from strata.cli.support.top.top_columns import (
    UNKNOWN,
    busy,
    elapsed,
    is_living,
    rate,
    task_rate,
    worker_rate,
    worker_step,
)

if TYPE_CHECKING:
    from strata.cli.support.top.top_app import TopApp

LEVELS = {"error": "red", "warn": "yellow", "warning": "yellow"}


class DetailScreen(Screen[None]):
    """A task, or a worker if the subject has one."""

    CSS = """
    #head { height: 1; }
    #state { height: auto; padding: 0 1; }
    #events { height: 1fr; border-top: solid $primary; }
    #lines { height: 2fr; border-top: solid $primary; }
    #event_lines { text-wrap: nowrap; text-overflow: ellipsis; }
    VerticalScroll { scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "leave", "Back", key_display="esc"),
        Binding("tab", "app.focus_next", "Next part", priority=True),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, top: "TopApp", subject: Subject) -> None:
        super().__init__()
        self.top = top
        self.subject = subject

    def compose(self) -> ComposeResult:
        """State, facts and log, from top to bottom."""
        yield Static(id="head")
        yield Static(id="state")
        with VerticalScroll(id="events"):
            yield Static(id="event_lines")
        with VerticalScroll(id="lines"):
            yield Static(id="log_lines")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Ask for the details of the subject."""
        assert self.top.reader is not None
        self.top.reader.want(self.subject)
        self.query_one("#events", VerticalScroll).border_title = "last facts"
        self.query_one("#lines", VerticalScroll).border_title = "log"
        self.show()

    def action_leave(self) -> None:
        """Return to the tables."""
        self.app.pop_screen()
        self.top.show()

    def show(self) -> None:
        """Draw everything again."""
        known = self.top.details
        details = known if known is not None and known.subject == self.subject else None
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(plain(self.subject.worker or self.subject.task), "bold")
        head.append("  ").append_text(self.top.link_line())
        self.query_one("#head", Static).update(head)
        lines = self.worker_state() if self.subject.worker else self.task_state()
        lines.append_text(self.loss(details))
        self.query_one("#state", Static).update(lines)
        self.query_one("#event_lines", Static).update(event_lines(details))
        log = self.query_one("#log_lines", Static)
        log.update(log_lines(details))

    def task_state(self) -> Text:
        """The state of the task."""
        task = self.top.mirror.task(self.subject.task)
        if task is None:
            return Text("not known: the coordinator does not list this task\n", "red")
        now_ms, shown = self.top.mirror.at_ms, Text()
        shown.append_text(state(task.status))
        shown.append(f"  generation {task.generation}  workers {task.worker_ids_total}")
        shown.append(f"/{task.worker_count}  time {elapsed(task, now_ms)}\n")
        saved = UNKNOWN if task.saved_step is None else count(task.saved_step)
        done = UNKNOWN if task.progress is None else f"{task.progress:.0f} %"
        shown.append(f"steps {count(task.committed_steps)}  saved {saved}  done {done}")
        shown.append(f"  rate {rate(task_rate(self.top.mirror, task))}\n")
        if task.reason:
            shown.append(f"{plain(task.reason)}\n", "dim")
        return shown

    def worker_state(self) -> Text:
        """The state of the worker."""
        worker = self.top.mirror.worker(self.subject.worker)
        if worker is None:
            return Text("not known: the coordinator does not list this worker\n", "red")
        now_ms, shown = self.top.mirror.at_ms, Text()
        shown.append_text(state(worker.state))
        rank = UNKNOWN if worker.rank < 0 else str(worker.rank)
        step = worker_step(worker)
        shown.append(f"  task {plain(worker.current_task)}  rank {rank}")
        shown.append(f"  incarnation {worker.incarnation}  host {plain(worker.hostname)}\n")
        shown.append(f"step {UNKNOWN if step is None else count(step)}")
        shown.append(f"  rate {rate(worker_rate(self.top.mirror, worker))}")
        loss = worker.loss if is_living(worker) else None
        shown.append(f"  loss {UNKNOWN if loss is None else f'{loss:.4g}'}")
        shown.append(f"  heartbeat {ago(worker.last_heartbeat or None, now_ms)}\n")
        used, gpu = worker.resources, busy(worker)
        cpu = f"{used.cpu_percent:.0f} %" if used else UNKNOWN
        memory = size(used.memory_used_bytes) if used else UNKNOWN
        gpus = UNKNOWN if gpu is None else f"{gpu:.0f} %"
        shown.append(f"cpu {cpu}  memory {memory}  gpu {gpus}\n")
        if worker.reason:
            shown.append(f"{plain(worker.reason)}\n", "dim")
        return shown

    def loss(self, details: Details | None) -> Text:
        """The loss as a sparkline."""
        if details is None:
            return Text("loss …", "dim")
        if details.losses is None:
            return Text(f"loss not known: {plain(details.errors[0])}", "red")
        if not details.losses:
            return Text("loss not recorded", "dim")
        line = Text("loss ", no_wrap=True, overflow="ellipsis")
        line.append(sparkline(on_log_scale(details.losses)), "cyan")
        last = "not finite" if details.loss is None else f"{details.loss:.4g}"
        return line.append(f" {last} at step {count(details.step or 0)}")


def event_lines(details: Details | None) -> Text:
    """The newest facts first."""
    if details is None or details.events is None:
        return missing(details)
    shown = Text(no_wrap=True, overflow="ellipsis")
    for event in sorted(details.events, key=lambda each: each.at_ms, reverse=True):
        shown.append(f"{clock(int(event.at_ms))} ", "dim")
        shown.append(f"{plain(event.summary)}\n")
    return shown if details.events else Text("none recorded", "dim")


def log_lines(details: Details | None) -> Text:
    """The newest log lines first."""
    if details is None or details.lines is None:
        return missing(details)
    shown = Text()
    for line in details.lines:
        at = datetime.fromtimestamp(line.timestamp / 1000)
        shown.append(f"{at:%H:%M:%S} {plain(line.worker_id or line.source)} ", "dim")
        shown.append(f"{plain(line.message)}\n", LEVELS.get(line.level, ""))
    return shown if details.lines else Text("no line", "dim")


def missing(details: Details | None) -> Text:
    """Why something is not shown."""
    if details is None or not details.errors:
        return Text("…", "dim")
    return Text(f"not known: {plain(details.errors[-1])}", "red")
