"""Guards what is on users' disks: a log that an earlier release wrote is read and folded forever.

`tests/golden/facts-v1.json` lists every kind with its fields and types, `tests/golden/log-v1.bin`
holds whole runs with every kind of the coordinator's in them, `worker-log-v1.bin` an event of every
kind of the workers'. After adding a kind, or a field with a default, run

    python -m tests.core.golden

and commit what it adds. It refuses to change what is there. Until the first release, a change
to a kind may instead be made by deleting the files and running it.
"""

import copy

import msgspec
import pytest

from strata.core.cluster import CODEC, fold
from strata.core.datasets.dataset_rules import DatasetRegistered
from strata.core.events import UnknownFact
from strata.core.state import Cluster
from strata.core.tasks.task_lifecycle import TaskSubmitted
from strata.core.workers import worker_facts
from strata.core.workers.worker_lifecycle import WorkerRegistered
from tests.core.golden import (
    ADVICE,
    breaks,
    frozen_events,
    frozen_runs,
    frozen_schema,
    kinds_in,
    schema_now,
)
from tests.core.scenario import every_kind

ADD = "it is new: run `python -m tests.core.golden` and commit what it adds"


def test_frozen_schema_is_unchanged():
    faults = breaks(frozen_schema(), schema_now())
    assert faults == [], ADVICE


def test_whole_schema_is_frozen():
    frozen, now = frozen_schema(), schema_now()
    added = {f"{name}.{field}" for name in now for field in now[name]}
    added -= {f"{name}.{field}" for name in frozen for field in frozen[name]}
    assert added == set(), ADD
    assert frozen == now, ADD


def test_frozen_logs_hold_every_kind():
    assert set(CODEC.kinds) - kinds_in(frozen_runs()) == set(), ADD
    assert set(worker_facts.CODEC.kinds) - kinds_in(frozen_events()) == set(), ADD


@pytest.mark.parametrize("batch", frozen_events())
def test_frozen_worker_events_decode_unchanged(batch):
    for event, written in zip(
        worker_facts.CODEC.decode(batch), msgspec.msgpack.decode(batch), strict=True
    ):
        assert not isinstance(event.body, UnknownFact)
        assert written[:3] == [event.seq, event.wall_ns, event.mono_ns]
        assert written[4:] == [list(event.cause), event.op]
        fields = msgspec.to_builtins(event.body, builtin_types=(bytes,))
        assert written[3].items() <= fields.items()


@pytest.mark.parametrize("run", frozen_runs())
def test_frozen_log_is_read_and_folded(run):
    events = CODEC.decode(run)
    bodies = [event.body for event in events]
    assert not any(isinstance(body, UnknownFact) for body in bodies)
    state = fold(Cluster(), events)
    assert state.position == len(events) > 0
    for kind, kept in ((WorkerRegistered, state.workers), (TaskSubmitted, state.tasks)):
        name = "worker" if kind is WorkerRegistered else "task"
        assert {getattr(b, name) for b in bodies if isinstance(b, kind)} == set(kept)
    assert {b.dataset for b in bodies if isinstance(b, DatasetRegistered)} == set(state.datasets)


def test_scenario_records_every_kind():
    recorded = kinds_in([CODEC.encode(every_kind().log)])
    assert set(CODEC.kinds) - recorded == set(), "record them in tests/core/scenario.py"


def changed(change):
    """The present schema after a change, beside the present one."""
    schema = copy.deepcopy(schema_now())
    change(schema)
    return breaks(schema_now(), schema)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("WorkerLost"), "WorkerLost is gone"),
        (lambda s: s["WorkerLost"].pop("signal"), "WorkerLost.signal is gone"),
        (lambda s: s["TaskSpec"].pop("policy"), "TaskSpec.policy is gone"),
        (lambda s: s["WorkerLost"].update(reason="int"), "WorkerLost.reason was str and is int"),
        (
            lambda s: s["LeaseReturned"].update(why="str"),
            "LeaseReturned.why is new and has no default",
        ),
        (
            lambda s: s["GenerationChanged"].update(phase='"forming" | "running"'),
            'GenerationChanged.phase was "forming" | "syncing" | "running" and is '
            '"forming" | "running"',
        ),
        (
            lambda s: s["WorkerRegistered"].update(port="int"),
            "WorkerRegistered.port was int = 0 and is int",
        ),
        (
            lambda s: s["WorkerRegistered"].update(weight="int = 2"),
            "WorkerRegistered.weight was int = 1 and is int = 2",
        ),
        (
            lambda s: s["Move[]"].update(first=s["Move[]"].pop("first")),
            "Move[] is an array and its order has changed",
        ),
    ],
)
def test_incompatible_schema_changes_are_found(change, said):
    assert changed(change) == [said]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(MoonPhaseChanged={"phase": "str"}),
        lambda s: s["LeaseReturned"].update(why='str = ""'),
        lambda s: s["LeaseReturned"].update(reason='str = ""'),
        lambda s: s["Move[]"].update(why='str = ""'),
        lambda s: s["GenerationChanged"].update(
            phase='"forming" | "syncing" | "running" | "paused"'
        ),
    ],
)
def test_compatible_schema_changes_pass(change):
    assert changed(change) == []
