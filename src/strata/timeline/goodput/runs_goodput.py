"""Goodput over several runs: the present log and the archived runs, by run, week, host and cause.

A run that is archived and still in the log counts once. The ledgers of archived runs do not change,
so their sums are kept. At most `MAX_RUNS` runs are read, and `MAX_TASKS` tasks of each, the newest
ones; `left_out` names the others.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from threading import Lock

from msgspec import Struct, field, structs

from strata.config import Settings
from strata.core.events import COORDINATOR
from strata.core.record.record_retention import EventsReleased
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.errors import NotFound, StrataError
from strata.timeline.answer_cache import Paced
from strata.timeline.answers import RunRow
from strata.timeline.goodput.goodput_answers import (
    CauseAnswer,
    CauseKind,
    GoodputRow,
    RunsGoodput,
    TimeClass,
)
from strata.timeline.goodput.ledger import MONDAY_NS, WEEK_NS, Ledger, ledger
from strata.timeline.goodput.lost_time import TOP, KindSum, Spent, answers, by_kind, kind_text
from strata.timeline.goodput.prices import Prices
from strata.timeline.goodput.task_goodput import what_if
from strata.timeline.queries import GOODPUT_MOST_S, GOODPUT_SHARE, TimelineQueries
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import counted

MAX_RUNS = 100
MAX_TASKS = 200
KEPT = 200
SHOWN = 200

ByClass = dict[TimeClass, Spent]


class TaskSums(Struct):
    """The sums of one task, in the run `run`."""

    run: str
    cluster: str
    task: str
    classes: ByClass
    weeks: dict[int, ByClass]
    hosts: dict[str, ByClass]
    causes: list[CauseAnswer]
    kinds: dict[str, KindSum]
    notes: list[str]


class _RunSums(Struct, frozen=True):
    """The sums of a run's newest tasks, and the number of its older ones."""

    tasks: list[TaskSums]
    older: int


class _Sums(Struct):
    """The sums of several tasks."""

    runs: dict[str, ByClass] = field(default_factory=dict)
    weeks: dict[int, ByClass] = field(default_factory=dict)
    hosts: dict[str, ByClass] = field(default_factory=dict)
    causes: list[CauseAnswer] = field(default_factory=list)
    kinds: dict[str, KindSum] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def task_sums(timeline: Timeline, task: str, prices: Prices) -> TaskSums:
    """The sums of a task of a run."""
    found: Ledger = ledger(timeline, task, prices)
    name = timeline.name or "log"
    return TaskSums(
        run=name,
        cluster=cluster_of(timeline),
        task=task,
        classes=found.classes,
        weeks=found.weeks,
        hosts=found.hosts,
        causes=answers(found.lost, what_if(found, prices)),
        kinds=by_kind(found.lost),
        notes=[f"{task}: {note}" for note in found.meter.notes()],
    )


def cluster_of(timeline: Timeline) -> str:
    """The cluster of a run; its name if the log has no id of a cluster."""
    return state_at(timeline, timeline.position).state.cluster or timeline.name or "log"


def tasks_with_workers(timeline: Timeline) -> list[str]:
    """The tasks whose workers registered, the newest last."""
    kinds = {WorkerRegistered.__name__}
    found = timeline.records(node=COORDINATOR, kinds=kinds)
    return list(dict.fromkeys(record.text("task") for record in found))


def _older(name: str, count: int) -> list[str]:
    """What to tell of a log's tasks that are left out."""
    return [f"{name or 'log'}: {counted(count, 'task')} older than the newest {MAX_TASKS}"]


class RunsLedger:
    """Sums over a log and the archived runs at a place; for any thread."""

    def __init__(self, settings: Settings, where: str) -> None:
        self._settings = settings
        self._where = where
        self._kept: OrderedDict[tuple[str, float, str], _RunSums] = OrderedDict()
        self._paced = Paced[RunsGoodput](GOODPUT_SHARE, GOODPUT_MOST_S)
        self._lock = Lock()

    def goodput(self, own: TimelineQueries | None, prices: Prices) -> RunsGoodput:
        """The goodput of all runs; may be cached for a moment."""
        return self._paced.get(prices.text, lambda: self._goodput(own, prices), changes=True)

    def _goodput(self, own: TimelineQueries | None, prices: Prices) -> RunsGoodput:
        log = own.timeline if own is not None else None
        released = _released(log) if log is not None else set()
        every = tasks_with_workers(log) if log is not None else []
        present = every[-MAX_TASKS:]
        left_out: list[str] = []
        found: dict[tuple[str, str], TaskSums] = {}
        if log is not None:
            for task in present:
                if task not in released:
                    _keep(found, task_sums(log, task, prices))
        for sums in self._archived(prices, left_out, own is None):
            _keep(found, sums)
        if log is not None:
            for task in released.intersection(present):
                _keep(found, task_sums(log, task, prices))
            cluster = cluster_of(log)
            missing = [task for task in every if (cluster, task) not in found]
            if missing:
                left_out += _older(log.name, len(missing))
        return combined(found.values(), prices, left_out)

    def _archived(self, prices: Prices, left_out: list[str], logs: bool) -> Iterator[TaskSums]:
        """The sums of the newest archived runs; with `logs` also of logs at the place."""
        # Imported here: a log in SQLite needs no Arrow.
        from strata.timeline.archive.run_list import runs_at

        def unreadable(name: str, error: StrataError) -> None:
            left_out.append(f"{name}: {error.message}")

        try:
            rows = runs_at(self._where, self._settings, unreadable)
        except NotFound:
            rows = []
        rows = sorted((row for row in rows if row.archived or logs), key=lambda row: -row.to_ms)
        for row in rows[:MAX_RUNS]:
            try:
                of_run = self._of_run(row, prices)
                yield from of_run.tasks
                if of_run.older:
                    left_out += _older(row.name, of_run.older)
            except StrataError as error:
                unreadable(row.name, error)
        left_out += [f"{row.name}: more than {MAX_RUNS} runs" for row in rows[MAX_RUNS:]]

    def _of_run(self, run: RunRow, prices: Prices) -> _RunSums:
        """The sums of a run, from earlier or from its files; those of a log may change."""
        from strata.timeline.archive.run_archive import open_anywhere

        key = (run.name, run.to_ms, prices.text)
        with self._lock:
            known = self._kept.get(key) if run.archived else None
        if known is not None:
            return known
        with open_anywhere(self._where, run.name, self._settings) as timeline:
            tasks = tasks_with_workers(timeline)
            own = [task for task in tasks if timeline.task in ("", task)]
            newest = own[-MAX_TASKS:]
            found = _RunSums(
                tasks=[task_sums(timeline, task, prices) for task in newest],
                older=len(own) - len(newest),
            )
        if run.archived:
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return found


def _keep(found: dict[tuple[str, str], TaskSums], sums: TaskSums) -> None:
    """Count a task of a cluster once: the first sums are kept."""
    found.setdefault((sums.cluster, sums.task), sums)


def _released(log: Timeline) -> set[str]:
    """The tasks whose worker events are no longer in the log."""
    kinds = {EventsReleased.__name__}
    return {record.text("task") for record in log.records(node=COORDINATOR, kinds=kinds)}


def combined(found: Iterable[TaskSums], prices: Prices, left_out: list[str]) -> RunsGoodput:
    """The sums of several tasks as the API shows them."""
    sums, total = _Sums(), ByClass()
    for each in found:
        _add(total, each.classes)
        name = each.task if each.run in ("", "log") else each.run
        _add(sums.runs.setdefault(name, {}), each.classes)
        for week, classes in each.weeks.items():
            _add(sums.weeks.setdefault(week, {}), classes)
        for host, classes in each.hosts.items():
            _add(sums.hosts.setdefault(host, {}), classes)
        sums.causes += [
            structs.replace(cause, text=f"{name}: {cause.text}") for cause in each.causes
        ]
        for kind, lost in each.kinds.items():
            own = sums.kinds.setdefault(kind, KindSum())
            own.total.join(lost.total)
            own.count += lost.count
        sums.notes += each.notes
    whole = row("all", total)
    sums.causes.sort(key=lambda cause: (-(cause.cost or 0.0), -cause.seconds))
    by_time = sorted(sums.runs.items(), key=lambda each: -sum(s.ns for s in each[1].values()))
    hosts = sorted(sums.hosts.items(), key=lambda each: -sum(s.ns for s in each[1].values()))
    return RunsGoodput(
        total_s=whole.total_s,
        productive_s=whole.productive_s,
        goodput=whole.goodput,
        cost=whole.cost,
        price=prices.text,
        currency=prices.currency,
        runs=[row(name, classes) for name, classes in by_time[:SHOWN]],
        weeks=[row(week_name(week), each) for week, each in sorted(sums.weeks.items())][-SHOWN:],
        hosts=[row(name or "not registered", each) for name, each in hosts[:SHOWN]],
        causes=sums.causes[:TOP],
        kinds=_kinds(sums.kinds),
        left_out=left_out[:SHOWN],
        notes=sums.notes[:SHOWN],
    )


def _kinds(sums: dict[str, KindSum]) -> list[CauseKind]:
    """The kinds of causes, the most expensive first; kinds with the same text count as one."""
    joined: dict[str, tuple[str, KindSum]] = {}
    for kind, each in sums.items():
        _, own = joined.setdefault(kind_text(kind), (kind, KindSum()))
        own.total.join(each.total)
        own.count += each.count
    found = [
        CauseKind(
            kind=kind,
            text=text,
            seconds=own.total.ns / SECOND_NS,
            cost=own.total.money,
            count=own.count,
        )
        for text, (kind, own) in joined.items()
    ]
    return sorted(found, key=lambda each: (-(each.cost or 0.0), -each.seconds))[:SHOWN]


def _add(to: ByClass, classes: ByClass) -> None:
    for name, spent in classes.items():
        to.setdefault(name, Spent()).join(spent)


def row(name: str, classes: ByClass) -> GoodputRow:
    """The sums of one week, host or run."""
    whole = Spent()
    for spent in classes.values():
        whole.join(spent)
    productive_ns = classes["productive"].ns if "productive" in classes else 0
    return GoodputRow(
        name=name,
        total_s=whole.ns / SECOND_NS,
        productive_s=productive_ns / SECOND_NS,
        goodput=productive_ns / whole.ns if whole.ns else 0.0,
        cost=whole.money,
        seconds={name: spent.ns / SECOND_NS for name, spent in sorted(classes.items())},
    )


def week_name(week: int) -> str:
    """The ISO week of a number of weeks since the first Monday of Unix time (UTC)."""
    moment = datetime.fromtimestamp((MONDAY_NS + week * WEEK_NS) / SECOND_NS, UTC)
    year, number, _ = moment.isocalendar()
    return f"{year}-W{number:02d}"
