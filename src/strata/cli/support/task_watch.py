"""A running task in the terminal: output of its workers, with a progress line below.

All data comes from the REST API, so a task looks the same wherever it runs. Without a terminal
there is no progress line.
"""

import time
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from strata import config
from strata.cli.support import terminal
from strata.cli.support.audit_output import show as show_audit
from strata.cli.support.charts.watched_curves import WatchedCurves
from strata.cli.support.event_stream import retrying
from strata.cli.support.exit_codes import FAILED
from strata.cli.support.failures.worker_lines import Printed, WorkerLines
from strata.cli.support.goodput_output import show_classes
from strata.cli.support.rest_client import Answer, Api, Param
from strata.cli.support.tables import count, duration, plain, state
from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.rest.response_models import FactResponse, TaskDetail
from strata.errors import StrataError
from strata.timeline.audit.audit_results import Audit
from strata.timeline.goodput.goodput_answers import GoodputAnswer
from strata.timeline.read.sentences import counted

LOOK_S = 0.15
LINES_SHOWN = 200
LONG_REASON = 80
"""A longer reason of a loss is printed in full once."""

RATE_WINDOW_S = 5.0
ENDED = ("completed", "failed", "stopped")
REQUEUED = ("stopping", "queued")
"""The states of a preempted task; a continued one is queued after it has ended."""

KINDS = ",".join(
    (
        "WorkerLost",
        "RecoveryChosen",
        "TaskStateChanged",
        "RolledBack",
        "StorageUnreachable",
        "CheckpointFailed",
        "GenerationChanged",
        "TaskResized",
        "WorkersReleased",
        "AlertRaised",
        "AlertResolved",
        "AlertDeliveryFailed",
    )
)


class Started(NamedTuple):
    """A task that was started, and what had been recorded before: facts, log lines and steps."""

    task_id: str
    position: int = 0
    line: int = 0
    steps: int = 0


class Watcher:
    """Polls one task and prints what is new."""

    def __init__(self, api: Api, started: Started, out: Console, patient: bool) -> None:
        self.api = api
        self.task_id = started.task_id
        self._steps_before = started.steps
        self.patient = patient
        self.losses = 0
        self._last_loss = ""
        self.recoveries = 0
        self._out = out
        self._trained = False
        self._unreachable = ""
        self._waited_for = ""
        self._position = started.position
        self._rank_0 = ""
        self._rank_0_shown = ""
        self._last_line = started.line
        self._lines = WorkerLines()
        self._began_s = time.monotonic()
        self._progress: list[tuple[float, int]] = []
        self._curves = WatchedCurves(api, started.task_id)
        self._live = Live(console=out, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def look(self) -> TaskDetail:
        """Poll once and print what is new."""
        task = self.api.decode(self._get(f"/api/tasks/{self.task_id}").body, TaskDetail)
        self._show_lines()
        self._show_facts()
        if task.waiting_for != self._waited_for:
            self._waited_for = task.waiting_for
            if task.waiting_for:
                self.say("○", "dim", f"waiting: {task.waiting_for}")
        if self._live.is_started:
            self._curves.look()
            self._live.update(self._status(task))
        return task

    @property
    def exceptions(self) -> list[str]:
        """The last line of each different traceback of the workers."""
        return self._lines.exceptions

    def summary(self, task: TaskDetail) -> None:
        """Print a summary of the ended task."""
        self._print_lines(self._lines.rest())
        took_s = time.monotonic() - self._began_s
        self._out.print(
            Text.assemble(state(task.status), f"  {plain(task.id)}: {plain(task.reason)}")
        )
        if task.status == "completed" and task.exit_code:
            self.say("✗", "red", "the final state was not saved")
        parts = [
            self._steps_done(task.committed_steps, took_s),
            counted(task.worker_count, "worker", "workers"),
            counted(self.losses, "loss", "losses"),
            counted(self.recoveries, "recovery", "recoveries"),
        ]
        self._out.print(Text(f"  {', '.join(parts)}", style="dim"))

    def _steps_done(self, steps: int, took_s: float) -> str:
        """Steps and time of this run; a script without Strata calls counts no steps."""
        own = max(steps - self._steps_before, 0)
        if not steps:
            return f"{took_s:.1f} s"
        after = f" after {count(self._steps_before)} before" if self._steps_before else ""
        return f"{count(own)} steps in {took_s:.1f} s ({own / took_s:,.1f} steps/s){after}"

    def audit(self) -> None:
        """Print the audit, if the task trained on a dataset.

        An audit that fails says nothing about the task, so it does not change the exit code.
        """
        try:
            answer = self.api.get(f"/api/tasks/{self.task_id}/audit")
            found = self.api.decode(answer.body, Audit)
        except StrataError as error:
            self.say("?", "yellow", f"the audit could not be made: {error.message}")
            return
        if found.feeds:
            show_audit(self._out, found, times=False)

    def goodput(self) -> None:
        """Print what the workers' time was spent on; a failure does not change the exit code."""
        try:
            answer = self.api.get("/api/timeline/goodput", task=self.task_id)
            found = self.api.decode(answer.body, GoodputAnswer)
        except StrataError as error:
            self.say("?", "yellow", f"the goodput could not be computed: {error.message}")
            return
        show_classes(self._out, found)

    def _get(self, path: str, **params: Param) -> Answer:
        """Send a GET request; retries only if the coordinator is in another process."""
        if self.patient:
            return retrying(lambda: self.api.get(path, **params))
        return self.api.get(path, **params)

    def _show_lines(self) -> None:
        """Print new log lines, at most the newest `LINES_SHOWN`."""
        answer = self._get("/api/logs", limit=LINES_SHOWN, task_id=self.task_id, source="worker")
        lines = self.api.decode(answer.body, list[LogEntry])
        fresh = [line for line in lines if line.seq > self._last_line]
        if not fresh:
            return
        if len(fresh) == len(lines) == LINES_SHOWN and self._last_line:
            self._out.print(Text("  … more lines: see `strata logs`", style="dim"))
        self._last_line = fresh[0].seq
        self._print_lines(self._lines.taken(reversed(fresh)))

    def _print_lines(self, lines: list[Printed]) -> None:
        """Print lines of workers; repeated tracebacks as one line for all workers that had one."""
        repeated: dict[str, list[str]] = {}
        for line in lines:
            who = plain(self._short(line.worker))
            if line.again:
                repeated.setdefault(line.text, []).append(who)
                continue
            text = Text.assemble((f"{who:>4} ", "cyan"), plain(line.text))
            self._out.print(text, soft_wrap=True)
        for exception, workers in repeated.items():
            again = f"the same traceback again: {plain(shortened(exception, LONG_REASON))}"
            names = ", ".join(dict.fromkeys(workers))
            text = Text.assemble((f"{names:>4} ", "cyan"), (again, "dim"))
            self._out.print(text, soft_wrap=True)

    def _show_facts(self) -> None:
        answer = self._get("/api/events", position=self._position, kinds=KINDS, limit=1000)
        self._position = int(answer.cursor) if answer.cursor else answer.total
        for fact in self.api.decode(answer.body, list[FactResponse]):
            if fact.fields.get("task", "") in ("", self.task_id):
                self._print_fact(fact.kind, fact.fields)

    def _print_fact(self, kind: str, fields: dict[str, Any]) -> None:
        if kind.startswith("Alert"):
            self._print_alert(kind, fields)
        elif kind == "WorkerLost":
            self.losses += 1
            reason = fields["reason"]
            if reason == self._last_loss:
                reason = shortened(reason, LONG_REASON)
            self._last_loss = fields["reason"]
            where = self._where() if fields.get("signal") == "hang" else ""
            self.say("✗", "red", f"{fields['worker']} was lost: {reason}{where}")
        elif kind == "RecoveryChosen" and not self._is_announced(fields):
            self.recoveries += 1
            self.say("↻", "yellow", recovered(fields))
        elif kind == "CheckpointFailed":
            why = f"checkpoint {fields['checkpoint']} failed: {fields['reason']}"
            self.say("✗", "yellow", why)
        elif kind == "RolledBack":
            self.say("↺", "yellow", f"rolled back to step {fields['to']}: {fields['reason']}")
        elif kind == "StorageUnreachable":
            self._say_unreachable(fields)
        elif kind == "TaskResized":
            wanted = str(fields["after"])
            if fields.get("elastic"):
                wanted = f"{fields['min_workers']}:{wanted}"
            change = f"from {counted(fields['before'], 'worker')} to {wanted}"
            self.say("⇄", "yellow", f"resized {change}: {fields['reason']}")
        elif kind == "WorkersReleased":
            names = ", ".join(self._short(worker) for worker in fields["left"])
            self.say("⇄", "yellow", f"released {names}: {fields['reason']}")
        elif kind == "GenerationChanged":
            self._rank_0 = dict(fields["seats"]).get(0, self._rank_0)
        elif kind == "TaskStateChanged" and fields["after"] == "running":
            self.say("●", "green", fields["reason"] + self._new_rank_0())
        elif kind == "TaskStateChanged" and fields["after"] == "stopping":
            self.say("◑", "yellow", f"stopping: {fields['reason']}")
        elif kind == "TaskStateChanged" and (fields["before"], fields["after"]) == REQUEUED:
            self.say("○", "yellow", f"queued again: {fields['reason']}")

    def _where(self) -> str:
        """The command that shows where the ranks of a hang were."""
        source = f"--url {self.api.url}" if self.patient else "--data …"
        return f"; `strata why hang {source}` shows where each rank was"

    def _print_alert(self, kind: str, fields: dict[str, Any]) -> None:
        """Print an alert, and show it on the desktop, because a long run is not watched."""
        name = f"{fields['alert']} ({fields.get('rule', fields.get('channel'))})"
        if kind == "AlertRaised":
            style = {"error": "red", "warning": "yellow"}.get(fields["severity"], "dim")
            long = self._last_loss if len(self._last_loss) > LONG_REASON else ""
            told = fields["text"]
            if long:
                told = told.replace(long, shortened(long, LONG_REASON))
            self.say("!", style, f"{name}: {told}")
            if fields["severity"] != "info":
                self._notify(f"Strata {fields['rule']}", plain(fields["text"]))
        elif kind == "AlertResolved":
            self.say("✓", "green", f"{name} is closed: {fields['reason']}")
        else:
            self.say("!", "yellow", f"{name} was not delivered: {fields['reason']}")

    def _notify(self, title: str, text: str) -> None:
        if self._out.is_terminal and self._out.file.isatty():  # colours may be forced for a file
            terminal.notify(self._out.file, title, text, desktop=config.has_desktop())

    def _say_unreachable(self, fields: dict[str, Any]) -> None:
        """Say once per checkpoint what the workers cannot read, and what the user can do."""
        checkpoint = fields["checkpoint"]
        if checkpoint == self._unreachable:
            return
        self._unreachable = checkpoint
        lines = [f"checkpoint {checkpoint} cannot be read, the workers wait: {fields['reason']}"]
        if fields.get("missing"):
            command = f"strata checkpoints rm {checkpoint} --task {self.task_id} --url"
            lines += [f"restore the file, or continue from an older one: {command} {self.api.url}"]
        for line in lines:
            self.say("○", "yellow", line)

    def _is_announced(self, fields: dict[str, Any]) -> bool:
        """Whether a generation is the first of this run, at the step that is already printed."""
        first, self._trained = not self._trained, True
        return first and fields["step"] == self._steps_before

    def _short(self, worker: str) -> str:
        """A worker's name without the task's prefix."""
        return worker.removeprefix(f"{self.task_id}-")

    def _new_rank_0(self) -> str:
        """A note if rank 0 moved to another worker, because most scripts print only there."""
        before, self._rank_0_shown = self._rank_0_shown, self._rank_0
        moved = before and before != self._rank_0
        return f"; rank 0 is now {self._short(self._rank_0)}" if moved else ""

    def say(self, glyph: str, style: str, text: str) -> None:
        """Print an event."""
        self._out.print(
            Text.assemble((f"   {glyph} ", style), (plain(text), style)), soft_wrap=True
        )

    def _status(self, task: TaskDetail) -> Text:
        """The progress line, most important first: a narrow terminal cuts its end."""
        now_s = time.monotonic()
        rate = self._rate(now_s, task.committed_steps)
        done = f" ({task.progress:.0f} %)" if task.progress is not None else ""
        parts = [
            f"step {count(task.committed_steps)}{done}" if task.committed_steps else "",
            f"{rate:,.1f} steps/s" if rate is not None else "",
            f"loss {task.loss:.4g} {self._curves.losses}".rstrip() if task.loss is not None else "",
            self._curves.throughput,
            self._time_left(task, rate),
            counted(task.worker_ids_total, "worker", "workers")
            if task.elastic
            else f"{min(task.worker_ids_total, task.worker_count)}/{task.worker_count} workers",
            counted(self.losses, "loss", "losses") if self.losses else "",
            duration(now_s - self._began_s),
            f"saved at {count(task.saved_step)}" if task.saved_step is not None else "",
        ]
        if task.status in ("queued", "starting"):
            parts = [plain(task.reason), duration(now_s - self._began_s)]
        text = Text.assemble(state(task.status), "  ", (" · ".join(filter(None, parts)), "dim"))
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    def _time_left(self, task: TaskDetail, rate: float | None) -> str:
        """The time until the last step at the present rate, if both are known."""
        if rate is None or not task.progress or not task.committed_steps:
            return ""
        steps_left = task.committed_steps * (100 / task.progress - 1)
        return f"{duration(steps_left / rate)} left" if steps_left >= 1 else ""

    def _rate(self, now_s: float, steps: int) -> float | None:
        """Recent steps per second, between updates, because steps are committed in groups."""
        if not self._progress or self._progress[-1][1] != steps:
            self._progress.append((now_s, steps))
        while len(self._progress) > 1 and self._progress[0][0] < now_s - RATE_WINDOW_S:
            self._progress.pop(0)
        (then_s, before), (last_s, last) = self._progress[0], self._progress[-1]
        return (last - before) / (last_s - then_s) if before and last > before else None


def exit_code(task: TaskDetail) -> int:
    """The exit code of the command for an ended task.

    A task that its script stopped ends with 0, one stopped from outside with 130.
    """
    if task.status in ("completed", "stopped"):
        return task.exit_code
    return task.exit_code or FAILED


def shortened(text: str, chars: int) -> str:
    """The beginning of a text that was printed before."""
    return text if len(text) <= chars else f"{text[:chars]}… (as before)"


def recovered(fields: dict[str, Any]) -> str:
    """A sentence on the state that a generation continues from."""
    generation, step = fields["generation"], fields["step"]
    if step == 0:
        return f"generation {generation} starts from step 0"
    return f"generation {generation} continues from step {step} ({fields['source']})"
