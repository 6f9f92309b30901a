"""The metrics of each task on GET /metrics, of at most `MAX_TASK_SERIES` tasks.

Tasks that train are listed in the order of submission, so that the same tasks keep their series
from one scrape to the next. `strata_task_series_omitted` counts the others.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from strata.coordinator.metrics.exposition import Exposition, Number, labels
from strata.coordinator.sessions.last_heartbeats import LastHeartbeat
from strata.core.state import Cluster
from strata.core.task_state import ENDED

MAX_TASK_SERIES = 100

TEXTS = {
    "committed_steps": "Committed steps of the task; falls at a rollback.",
    "loss": "Mean of the last losses that the task's workers reported; absent before the first.",
    "workers": "Live workers of the task.",
}


def add_tasks(page: Exposition, state: Cluster, heartbeats: Mapping[str, LastHeartbeat]) -> None:
    """Add the series of tasks that have begun and not ended."""
    begun = [task for task in state.tasks.values() if task.generation and task.state not in ENDED]
    shown = {task.id: labels(task=task.id) for task in islice(begun, MAX_TASK_SERIES)}
    losses: dict[str, list[float]] = {task: [] for task in shown}
    workers = dict.fromkeys(shown, 0)
    for worker in state.workers.values():
        if worker.alive and worker.task in shown:
            workers[worker.task] += 1
            last = heartbeats.get(worker.id)
            if last is not None and last.loss is not None:
                losses[worker.task].append(last.loss)
    values: dict[str, Iterable[tuple[str, Number | None]]] = {
        "committed_steps": [(tags, state.tasks[task].committed) for task, tags in shown.items()],
        "loss": [(tags, mean(losses[task])) for task, tags in shown.items()],
        "workers": [(tags, workers[task]) for task, tags in shown.items()],
    }
    for name, text in TEXTS.items():
        page.add("gauge", f"strata_task_{name}", text, values[name])
    page.one(
        "gauge",
        "strata_task_series_omitted",
        "Tasks that train without series of their own.",
        len(begun) - len(shown),
    )


def mean(values: list[float]) -> float | None:
    """The mean; NaN if a value is NaN, None without values."""
    return sum(values) / len(values) if values else None
