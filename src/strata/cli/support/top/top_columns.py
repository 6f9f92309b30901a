"""The tables of the terminal view: their columns, and the cells of each row.

A cell of a value that is not known is `UNKNOWN`, and never 0.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from rich.text import Text

from strata.cli.support.tables import ago, clock, count, duration, plain, size, state
from strata.cli.support.top.live_mirror import Mirror
from strata.coordinator.rest.response_models import BarrierResponse, CheckpointResponse
from strata.coordinator.rest.response_models import TaskResponse as Task
from strata.coordinator.rest.response_models import WorkerResponse as Worker
from strata.timeline.answers import EventAnswer

UNKNOWN = "–"
LIVING = frozenset({"starting", "running", "recovering", "stopping"})
MAX_ROWS = 500

SortKey: TypeAlias = float | str | None


class Cell(NamedTuple):
    """What is shown, and the value to sort by; None is sorted to the end."""

    shown: Text
    key: SortKey


class TopRow(NamedTuple):
    """A row of a table: its id, its cells, and the task and worker that it leads to, if any."""

    id: str
    cells: list[Cell]
    task: str = ""
    worker: str = ""


class View(NamedTuple):
    """A table of the view."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Mirror], Iterable[TopRow]]
    empty: str


def text(value: str) -> Cell:
    """A text; an empty one is unknown."""
    return Cell(Text(plain(value) if value else UNKNOWN), value or None)


def number(value: float | None, shown: Callable[[Any], str] = count) -> Cell:
    """A number to the right; None is unknown."""
    known = UNKNOWN if value is None else shown(value)
    return Cell(Text(known, justify="right"), value)


def status(name: str) -> Cell:
    """A state with its glyph."""
    return Cell(state(name), name)


def rate(value: float | None) -> str:
    """Steps per second with two digits after the point."""
    return UNKNOWN if value is None else f"{value:.2f}/s"


def percent(value: float) -> str:
    """A share in percent."""
    return f"{value:.0f} %"


def task_rate(mirror: Mirror, task: Task) -> float | None:
    """Committed steps per second of a task that trains."""
    return mirror.rates.rate(task.id, mirror.at_ms) if task.status == "running" else None


def tasks(mirror: Mirror) -> Iterable[TopRow]:
    """The tasks, newest first."""
    found = sorted(mirror.rows["tasks"].values(), key=lambda t: (t.submitted_at, t.id))
    for task in reversed(found):
        living = task.worker_ids_total
        yield TopRow(
            task.id,
            [
                text(task.id),
                status(task.status),
                number(task.committed_steps),
                number(task_rate(mirror, task), rate),
                number(task.progress, percent),
                Cell(Text(f"{living}/{task.worker_count}", justify="right"), float(living)),
                number(task.saved_step),
                Cell(Text(elapsed(task, mirror.at_ms), justify="right"), _seconds(task, mirror)),
                text(task.reason),
            ],
            task=task.id,
        )


def _seconds(task: Task, mirror: Mirror) -> float | None:
    if task.started_at is None:
        return None
    return ((task.completed_at or mirror.at_ms) - task.started_at) / 1000


def elapsed(task: Task, now_ms: int) -> str:
    """How long a task has run; unknown before it starts."""
    if task.started_at is None:
        return UNKNOWN
    return duration(max((task.completed_at or now_ms) - task.started_at, 0) / 1000)


def is_living(worker: Worker) -> bool:
    """Whether a worker still runs, as far as it is known."""
    return worker.state not in ("lost", "left")


def worker_step(worker: Worker) -> int | None:
    """The step that a worker reported; None before its first report."""
    return None if worker.state == "initializing" else worker.current_step


def worker_rate(mirror: Mirror, worker: Worker) -> float | None:
    """Steps per second of a worker that trains."""
    trains = worker.state in ("training", "loading_data", "checkpointing")
    return mirror.rates.rate(worker.id, mirror.at_ms) if trains else None


def busy(worker: Worker) -> float | None:
    """Mean utilization of a worker's GPUs; None if it is not measured."""
    cards = worker.resources.gpu_metrics if worker.resources else []
    known = [each.utilization_percent for each in cards if each.utilization_percent is not None]
    return sum(known) / len(known) if known else None


def workers(mirror: Mirror) -> Iterable[TopRow]:
    """The workers by task and rank."""
    found = mirror.rows["workers"].values()
    for worker in sorted(found, key=lambda w: (w.current_task, w.rank < 0, w.rank, w.id)):
        used = worker.resources
        beat = max(mirror.at_ms - worker.last_heartbeat, 0) if worker.last_heartbeat else None
        yield TopRow(
            worker.id,
            [
                text(worker.id),
                status(worker.state),
                number(worker.rank if worker.rank >= 0 else None),
                number(worker_step(worker)),
                number(worker_rate(mirror, worker), rate),
                number(beat, lambda ms: ago(0, int(ms))),
                number(worker.loss if is_living(worker) else None, lambda x: f"{x:.4g}"),
                number(used.cpu_percent if used else None, percent),
                number(used.memory_used_bytes if used else None, lambda x: size(int(x))),
                number(busy(worker), percent),
                text(worker.hostname),
                text(worker.reason),
            ],
            task=worker.current_task,
            worker=worker.id,
        )


def gpus(mirror: Mirror) -> Iterable[TopRow]:
    """The GPUs of the hosts that were measured."""
    for host in sorted(mirror.rows["hosts"].values(), key=lambda each: each.id):
        for card in host.health.gpus if host.health else ():
            limit = card.memory_total_bytes
            used = card.memory_used_bytes
            yield TopRow(
                f"{host.id}/{card.index}",
                [
                    text(host.hostname),
                    number(card.index),
                    text(card.name),
                    status("lost") if card.lost else status("up"),
                    number(card.utilization_percent, percent),
                    number(used, lambda x: size(int(x))),
                    number(limit, lambda x: size(int(x))),
                    number(card.temperature_celsius, lambda x: f"{x:.0f} °C"),
                    number(card.power_watts, lambda x: f"{x:.0f} W"),
                    text(card.throttle_reasons or ""),
                ],
            )


def barriers(mirror: Mirror) -> Iterable[TopRow]:
    """The newest round of each barrier, the newest first."""
    found: list[BarrierResponse] = list(mirror.rows["barriers"].values())
    for barrier in sorted(found, key=lambda each: each.created_at, reverse=True):
        missing = ", ".join(barrier.missing)
        more = barrier.missing_total - len(barrier.missing)
        yield TopRow(
            barrier.id,
            [
                text(barrier.name),
                status(barrier.status),
                Cell(Text(f"{barrier.arrived}/{barrier.total}", justify="right"), barrier.arrived),
                text(barrier.task_id),
                Cell(Text(ago(barrier.created_at, mirror.at_ms)), -barrier.created_at),
                text(missing + (f" and {more} more" if more else "")),
            ],
            task=barrier.task_id,
        )


def checkpoints(mirror: Mirror) -> Iterable[TopRow]:
    """The checkpoints, newest first."""
    found: list[CheckpointResponse] = list(mirror.rows["checkpoints"].values())
    for saved in sorted(found, key=lambda each: each.created_at, reverse=True):
        done = saved.status == "completed"
        written = saved.size if done else saved.size_written
        share = f"{saved.parts}/{saved.parts_expected}"
        yield TopRow(
            f"{saved.task_id}/{saved.id}",
            [
                text(saved.id),
                status(saved.status),
                number(saved.step),
                number(written or None, lambda x: size(int(x))),
                Cell(Text(share, justify="right"), float(saved.parts)),
                text(saved.task_id),
                Cell(Text(ago(saved.created_at, mirror.at_ms)), -saved.created_at),
                text(saved.reason or ", ".join(saved.kept_because)),
            ],
            task=saved.task_id,
        )


def facts(mirror: Mirror) -> Iterable[TopRow]:
    """The newest facts and worker events."""
    for event in mirror.facts:
        yield TopRow(
            event.ref,
            [
                Cell(Text(clock(int(event.at_ms))), event.at_ms),
                text(event.kind),
                text(event.node),
                text(event.summary),
            ],
            task=task_of(event),
        )


def task_of(event: EventAnswer) -> str:
    """The task that an event is about, if it names one."""
    found = event.tags.get("task", "")
    return found if isinstance(found, str) else ""


VIEWS: tuple[View, ...] = (
    View(
        "Tasks",
        ("task", "status", "steps", "rate", "done", "workers", "saved", "time", "reason"),
        tasks,
        "no task was submitted",
    ),
    View(
        "Workers",
        (
            *("worker", "state", "rank", "step", "rate", "heartbeat", "loss", "cpu", "memory"),
            *("gpu", "host", "reason"),
        ),
        workers,
        "no worker is connected",
    ),
    View(
        "GPUs",
        ("host", "gpu", "name", "state", "busy", "memory", "of", "temp", "power", "throttled by"),
        gpus,
        "no GPU was measured",
    ),
    View(
        "Barriers",
        ("barrier", "status", "arrived", "task", "began", "missing"),
        barriers,
        "no barrier was recorded",
    ),
    View(
        "Checkpoints",
        ("checkpoint", "status", "step", "size", "parts", "task", "began", "reason"),
        checkpoints,
        "no checkpoint was recorded",
    ),
    View("Facts", ("time", "kind", "by", "what"), facts, "no fact was recorded"),
)


def arranged(found: Iterable[TopRow], wanted: str, column: int | None, down: bool) -> list[TopRow]:
    """The rows that contain a text, sorted by a column if one is chosen; unknown values last."""
    word = wanted.casefold()
    rows = [
        row
        for row in found
        if not word or any(word in cell.shown.plain.casefold() for cell in row.cells)
    ]
    if column is not None:
        known = [row for row in rows if row.cells[column].key is not None]
        unknown = [row for row in rows if row.cells[column].key is None]
        known.sort(key=lambda row: _ordered(row.cells[column].key), reverse=down)
        rows = known + unknown
    return rows[:MAX_ROWS]


def _ordered(key: SortKey) -> tuple[float, str]:
    return (0.0, key) if isinstance(key, str) else (key or 0.0, "")
