"""A task while it runs, in the terminal: its workers' output passes by, its progress stays below.

Everything comes from the coordinator's API, so a task looks the same wherever it runs. Where the
output is no terminal there is no line that stays: only what happens is written.
"""

import time
from types import TracebackType
from typing import Any, Self

from msgspec import Struct
from rich.console import Console
from rich.live import Live
from rich.text import Text

from strata.cli._api import Answer, Api, Param
from strata.cli._audit import Audit
from strata.cli._audit import show as show_audit
from strata.cli._look import count, duration, plain, state
from strata.cli._stream import patiently

LOOK_S = 0.15
LINES_SHOWN = 200
RATE_WINDOW_S = 5.0
ENDED = ("completed", "failed", "stopped")
KINDS = "WorkerLost,RecoveryChosen,TaskStateChanged,RolledBack,CheckpointFailed,GenerationChanged"
INTERRUPTED = 130


class Task(Struct, frozen=True):
    """What is shown of a task."""

    id: str
    status: str
    reason: str
    exit_code: int
    worker_ids_total: int
    worker_count: int
    generation: int
    committed_steps: int
    saved_step: int | None
    progress: float | None
    loss: float | None
    waiting_for: str


class Fact(Struct, frozen=True):
    """Something that happened."""

    kind: str
    fields: dict[str, Any]


class Line(Struct, frozen=True):
    """What a worker wrote."""

    id: str
    level: str
    message: str
    worker_id: str = ""

    @property
    def number(self) -> int:
        """Where it stands among the others."""
        return int(self.id.removeprefix("log_"), 16)


class Watcher:
    """Looks at one task again and again, and shows what is new."""

    def __init__(self, api: Api, task_id: str, out: Console, patient: bool) -> None:
        self.api = api
        self.task_id = task_id
        self.patient = patient
        self.losses = 0
        self.recoveries = 0
        self._out = out
        self._waited_for = ""
        self._position = 0
        self._rank_0 = ""
        self._rank_0_shown = ""
        self._last_line = 0
        self._began_s = time.monotonic()
        self._progress: list[tuple[float, int]] = []
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

    def look(self) -> Task:
        """Shows what is new."""
        task = self.api.decode(self._get(f"/api/tasks/{self.task_id}").body, Task)
        self._show_lines()
        self._show_facts()
        if task.waiting_for != self._waited_for:
            self._waited_for = task.waiting_for
            if task.waiting_for:
                self.say("○", "dim", f"waiting: {task.waiting_for}")
        if self._live.is_started:
            self._live.update(self._status(task))
        return task

    def summary(self, task: Task) -> None:
        """How it went, in a few lines."""
        took_s = time.monotonic() - self._began_s
        self._out.print(
            Text.assemble(state(task.status), f"  {plain(task.id)}: {plain(task.reason)}")
        )
        if task.status == "completed" and task.exit_code:
            self.say("✗", "red", "what was trained last is not saved")
        steps = task.committed_steps
        # A script that does not know Strata counts no steps.
        done = f"{count(steps)} steps in {took_s:.1f} s ({steps / took_s:,.1f}/s)"
        parts = [
            done if steps else f"{took_s:.1f} s",
            _times(task.worker_count, "worker", "workers"),
            _times(self.losses, "loss", "losses"),
            _times(self.recoveries, "recovery", "recoveries"),
        ]
        self._out.print(Text(f"  {', '.join(parts)}", style="dim"))

    def audit(self) -> None:
        """Show the audit of a task that trained on a dataset."""
        answer = self._get(f"/api/tasks/{self.task_id}/audit")
        found = self.api.decode(answer.body, Audit)
        if found.feeds:
            show_audit(self._out, found)

    def _get(self, path: str, **params: Param) -> Answer:
        """Asks; a coordinator elsewhere may come back, one in this process does not."""
        if self.patient:
            return patiently(lambda: self.api.get(path, **params))
        return self.api.get(path, **params)

    def _show_lines(self) -> None:
        """Prints the lines that are new; of very many, the newest."""
        answer = self._get("/api/logs", limit=LINES_SHOWN, task_id=self.task_id, source="worker")
        lines = self.api.decode(answer.body, list[Line])
        fresh = [line for line in lines if line.number > self._last_line]
        if not fresh:
            return
        if len(fresh) == len(lines) == LINES_SHOWN and self._last_line:
            self._out.print(Text("  … more lines: strata logs", style="dim"))
        self._last_line = fresh[0].number
        for line in reversed(fresh):
            who = self._short(line.worker_id)
            text = Text.assemble((f"{plain(who):>4} ", "cyan"), plain(line.message))
            self._out.print(text, soft_wrap=True)

    def _show_facts(self) -> None:
        answer = self._get("/api/events", position=self._position, kinds=KINDS, limit=1000)
        self._position = int(answer.cursor) if answer.cursor else answer.total
        for fact in self.api.decode(answer.body, list[Fact]):
            if fact.fields.get("task") == self.task_id:
                self._tell(fact.kind, fact.fields)

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "WorkerLost":
            self.losses += 1
            self.say("✗", "red", f"{fields['worker']} was lost: {fields['reason']}")
        elif kind == "RecoveryChosen" and fields["generation"] > 1:
            self.recoveries += 1
            self.say("↻", "yellow", recovered(fields))
        elif kind == "CheckpointFailed":
            why = f"checkpoint {fields['checkpoint']} failed: {fields['reason']}"
            self.say("✗", "yellow", why)
        elif kind == "RolledBack":
            self.say("↺", "yellow", f"rolled back to step {fields['to']}: {fields['reason']}")
        elif kind == "GenerationChanged":
            self._rank_0 = dict(fields["seats"]).get(0, self._rank_0)
        elif kind == "TaskStateChanged" and fields["after"] == "running":
            self.say("●", "green", fields["reason"] + self._new_rank_0())
        elif kind == "TaskStateChanged" and fields["after"] == "stopping":
            self.say("◑", "yellow", f"stopping: {fields['reason']}")

    def _short(self, worker: str) -> str:
        """A worker's name without its task's."""
        return worker.removeprefix(f"{self.task_id}-")

    def _new_rank_0(self) -> str:
        """Which worker is rank 0, where that changed: scripts mostly print there alone."""
        before, self._rank_0_shown = self._rank_0_shown, self._rank_0
        moved = before and before != self._rank_0
        return f"; rank 0 is now {self._short(self._rank_0)}" if moved else ""

    def say(self, glyph: str, style: str, text: str) -> None:
        """Prints something that happened."""
        self._out.print(
            Text.assemble((f"   {glyph} ", style), (plain(text), style)), soft_wrap=True
        )

    def _status(self, task: Task) -> Text:
        """How it is, in the order of interest: where a terminal is narrow the end is cut."""
        now_s = time.monotonic()
        rate = self._rate(now_s, task.committed_steps)
        done = f" ({task.progress:.0f} %)" if task.progress is not None else ""
        parts = [
            f"step {count(task.committed_steps)}{done}" if task.committed_steps else "",
            f"{rate:,.1f}/s" if rate is not None else "",
            f"loss {task.loss:.4g}" if task.loss is not None else "",
            f"{min(task.worker_ids_total, task.worker_count)}/{task.worker_count} workers",
            _times(self.losses, "loss", "losses") if self.losses else "",
            duration(now_s - self._began_s),
            f"saved at {count(task.saved_step)}" if task.saved_step is not None else "",
        ]
        if task.status in ("queued", "starting"):
            parts = [plain(task.reason), duration(now_s - self._began_s)]
        text = Text.assemble(state(task.status), "  ", (" · ".join(filter(None, parts)), "dim"))
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    def _rate(self, now_s: float, steps: int) -> float | None:
        """Steps a second of late; they come many at a time, so from one arrival to another."""
        if not self._progress or self._progress[-1][1] != steps:
            self._progress.append((now_s, steps))
        while len(self._progress) > 1 and self._progress[0][0] < now_s - RATE_WINDOW_S:
            self._progress.pop(0)
        (then_s, before), (last_s, last) = self._progress[0], self._progress[-1]
        return (last - before) / (last_s - then_s) if before and last > before else None


def _times(number: int, one: str, many: str) -> str:
    return f"{count(number)} {one if number == 1 else many}"


def exit_code(task: Task) -> int:
    """How the command ends for a task that has; one that completed may be without its result.

    A task that its script stopped ends like one that completed, one that was stopped from outside
    as interrupted.
    """
    if task.status in ("completed", "stopped"):
        return task.exit_code
    return task.exit_code or 1


def recovered(fields: dict[str, Any]) -> str:
    """What a generation goes on from; at step 0 there is nothing to go on from."""
    generation, step = fields["generation"], fields["step"]
    if step == 0:
        return f"generation {generation} starts from step 0"
    return f"generation {generation} goes on from step {step} ({fields['source']})"
