"""The simulator finds defects: earlier defects of the coordinator are put back, and a few seeds
must find each of them. Without the defect the same seeds pass."""

import re
from collections.abc import Callable

import msgspec
import pytest

from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.sessions import unary_calls, worker_sessions
from strata.coordinator.sessions.task_environments import Environments, Provided
from strata.coordinator.sessions.worker_sessions import WorkerSession
from strata.core import cluster
from strata.core.events import Command
from strata.core.record import snapshot_versions
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks import task_lifecycle
from strata.core.workers.fencing import SharedCommand, require_living
from strata.core.workers.liveness import Watch
from strata.core.workers.stack_deadlines import StackDeadlines
from strata.sim.coordinator_checks import Broken
from strata.sim.simulation import Scenario, Simulation
from strata.store.event_store import Snapshot

SEEDS = range(6)
OFTEN = Scenario(hours=0.4, fault_every_s=40, steps=60, step_s=5.0)

SHORT_TASKS = {
    "workers": 1,
    "tasks": 4,
    "hours": 0.03,
    "faults": (),
    "steps": 6,
    "step_s": 0.3,
    "heartbeat_s": 0.2,
    "start_s": 0.1,
}

Patch = pytest.MonkeyPatch


def leave_stored_facts_unpublished(patch: Patch) -> None:
    """A snapshot that the disk refuses makes a turn fail whose facts are stored, and no later turn
    publishes them."""

    def snapshot(kernel: Kernel) -> None:
        encoded = snapshot_versions.encode(kernel.state)
        wall_ns = kernel.clock().wall_ns
        kernel.store.save_snapshot(
            Snapshot(kernel.durable, wall_ns, snapshot_versions.SCHEMA, encoded)
        )
        kernel._snapshot_at = kernel.durable

    async def nothing_to_repair(engine: Engine) -> bool:
        return True

    patch.setattr(Kernel, "_snapshot", snapshot)
    patch.setattr(Engine, "_caught_up", nothing_to_repair)


def welcome_without_a_turn(patch: Patch) -> None:
    """A new incarnation is sent its state at once, from facts that are not on disk yet."""
    in_turn = WorkerSession._hello

    def hello(session: WorkerSession, request: int, message) -> None:
        known = session.engine.kernel.state.workers.get(message.worker_id)
        living = known is not None and known.alive and known.incarnation == message.incarnation
        if living and session.sessions.is_new(message.incarnation):
            session._greeted = True
            session._welcome(known)
        else:
            in_turn(session, request, message)

    patch.setattr(WorkerSession, "_hello", hello)


def check_deadlines_first(patch: Patch) -> None:
    """Deadlines are checked before the queued messages, and recorded after them."""
    decide = Kernel.decide

    def early(kernel: Kernel, asked, check_deadlines: bool = True):
        now_ns = kernel.clock().mono_ns
        verdicts = kernel.watch.overdue(kernel.state, now_ns) if check_deadlines else []
        turn = decide(kernel, asked, check_deadlines=False)
        for verdict in verdicts:
            turn.events += kernel._decide(verdict).events
        return turn

    patch.setattr(Kernel, "decide", early)


def fence_only_some_commands(patch: Patch) -> None:
    """Commands that operators send, too, are accepted from an incarnation that was lost."""

    def lenient(decision, command) -> None:
        if not isinstance(command, SharedCommand):
            require_living(decision, command)

    patch.setattr(cluster, "require_living", lenient)


def read_the_vault_in_a_turn(patch: Patch) -> None:
    """An environment is read while agents are informed, so an unreadable file ends the engine."""

    def read(environments: Environments, task: Task) -> Provided:
        file = environments._vault._folder / task.spec.env_key
        return Provided(msgspec.json.decode(file.read_bytes(), type=dict[str, str]), "")

    patch.setattr(Environments, "of", read)


def expect_every_worker_to_be_known(patch: Patch) -> None:
    """Commits look up workers that may be forgotten."""
    commits = Watch._commits

    def strict(watch: Watch, state: Cluster, now_ns: int) -> list[Command]:
        assert all(state.workers[worker] for worker in watch._moved)
        return commits(watch, state, now_ns)

    patch.setattr(Watch, "_commits", strict)


def declare_hangs_at_once(patch: Patch) -> None:
    """A hang is declared while the stacks of the task are being collected."""
    begin = StackDeadlines.before_verdict

    def hasty(self: StackDeadlines, *asked) -> tuple[list[Command], int | None]:
        first, held_ns = begin(self, *asked)
        return first, held_ns if first else None

    patch.setattr(StackDeadlines, "before_verdict", hasty)


def accept_any_secret(patch: Patch) -> None:
    """A process that knows a worker's id and incarnation may speak for it."""
    for module in (worker_sessions, unary_calls):
        patch.setattr(module, "require_proof", lambda worker, incarnation, nonce: None)


DEFECTS: dict[str, tuple[Callable[[Patch], None], dict[str, object], str]] = {
    "the facts of a failed turn stay unpublished": (
        leave_stored_facts_unpublished,
        {"faults": ("snapshots",)},
        "never published",
    ),
    "a standing leaves before it is on disk": (
        welcome_without_a_turn,
        {"faults": ("slow_disk", "crash")},
        "is told generation",
    ),
    "a worker that came back is declared lost": (
        check_deadlines_first,
        {"faults": ("slow_disk",)},
        r"declared lost \(connection\)",
    ),
    "an unreadable environment ends the engine": (
        read_the_vault_in_a_turn,
        {"faults": ("vault", "restart")},
        "the engine ended",
    ),
    "a forgotten worker ends the engine": (
        expect_every_worker_to_be_known,
        SHORT_TASKS,
        "the engine ended: KeyError",
    ),
    "a hang is declared before its stacks are there": (
        declare_hangs_at_once,
        {"faults": ("hang",)},
        "before its stacks were there",
    ),
    "a lost worker's commands are accepted": (
        fence_only_some_commands,
        {"faults": ("partition", "stop", "save", "write")},
        "which is fenced",
    ),
    "a worker's secret is not compared": (
        accept_any_secret,
        {"faults": ("hostile",), "workers": 4, "hours": 0.1, "fault_every_s": 20.0, "steps": 20},
        "a hostile process caused",
    ),
}


@pytest.fixture(autouse=True)
def few_ended_tasks(monkeypatch):
    """Tasks are forgotten when a few, not hundreds, have ended."""
    monkeypatch.setattr(task_lifecycle, "MAX_ENDED_TASKS", 0)
    monkeypatch.setattr(task_lifecycle, "FORGOTTEN_AT_ONCE", 1)


def scenario(defect: str, seed: int) -> Scenario:
    return msgspec.structs.replace(OFTEN, seed=seed, **DEFECTS[defect][1])


@pytest.mark.parametrize("defect", DEFECTS)
def test_seed_finds_the_defect(defect, monkeypatch):
    patch, _, expected = DEFECTS[defect]
    patch(monkeypatch)
    found = []
    for seed in SEEDS:
        try:
            Simulation(scenario(defect, seed)).run()
        except Broken as broken:
            found.append(str(broken))
            break
    assert found, f"no seed of {SEEDS} notices that {defect}"
    assert re.search(expected, found[0])


@pytest.mark.parametrize("defect", DEFECTS)
def test_seeds_pass_without_the_defect(defect):
    for seed in SEEDS:
        Simulation(scenario(defect, seed)).run()
