"""Guards the single writer: what is answered is stored, what is stored is found again."""

import msgspec
import pytest

from strata.coordinator.kernel import Kernel, state_at
from strata.core import state as cluster_state
from strata.core.cluster import CODEC
from strata.core.events import Codec, Now
from strata.core.scheduling import SubmitTask
from strata.core.state_versions import SCHEMA
from strata.core.tasks import TaskSpec
from strata.core.workers import RegisterWorker, ReportState
from strata.errors import Conflict, UnknownKind
from strata.sim.disk import DiskRefused, SimDisk
from strata.store.base import Snapshot
from strata.store.memory import MemoryStore
from strata.store.sqlite import SqliteStore


class Ticks:
    """A clock that moves by a second whenever it is read."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self) -> Now:
        self.now_ns += 1_000_000_000
        return Now(self.now_ns, self.now_ns)


def submit(kernel: Kernel, name: str = "job") -> None:
    kernel.commit(kernel.decide([SubmitTask(spec=TaskSpec(name=name))]))


def test_a_restart_finds_everything_and_raises_the_incarnation():
    store = MemoryStore(CODEC)
    first = Kernel(store, Ticks())
    first.start("c", "1")
    submit(first)
    second = Kernel(store, Ticks())
    assert cluster_state.encode(second.state) == cluster_state.encode(first.state)
    second.start("another name", "1")
    assert second.state.coordinator_incarnation == 2
    assert second.state.cluster == "c"


def test_what_was_decided_and_not_stored_is_gone():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks())
    kernel.start("c", "1")
    kernel.decide([SubmitTask(spec=TaskSpec(name="lost"))])
    assert Kernel(store, Ticks()).state.tasks == {}


def test_a_refused_write_rolls_the_state_back_and_the_next_one_works():
    disk = SimDisk(CODEC)
    kernel = Kernel(disk, Ticks())
    kernel.start("c", "1")
    before = cluster_state.encode(kernel.state)
    disk.refuse_next = True
    with pytest.raises(DiskRefused):
        submit(kernel)
    assert cluster_state.encode(kernel.state) == before
    submit(kernel)
    assert "job-1" in kernel.state.tasks


def test_of_two_writers_only_one_wins():
    store = MemoryStore(CODEC)
    first, second = Kernel(store, Ticks()), Kernel(store, Ticks())
    first.start("c", "1")
    with pytest.raises(Conflict):
        second.start("c", "1")


def test_snapshots_bound_what_a_restart_folds():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=100)
    kernel.start("c", "1")
    kernel.commit(kernel.decide([RegisterWorker(worker="w")]))
    incarnation = kernel.state.workers["w"].incarnation
    for number in range(500):
        state = "idle" if number % 2 else "training"
        kernel.commit(
            kernel.decide([ReportState(worker="w", incarnation=incarnation, state=state)])
        )
    snapshot = store.load_snapshot(None, SCHEMA)
    assert snapshot is not None
    assert kernel.durable - snapshot.position < 200
    assert cluster_state.encode(Kernel(store, Ticks()).state) == cluster_state.encode(kernel.state)


@pytest.mark.parametrize(
    ("schema", "state"),
    [
        ("state/9999", b""),
        (SCHEMA, b"\x00"),
        (SCHEMA, msgspec.msgpack.encode(({"Moon": ["x"]}, {}))),
    ],
)
def test_snapshot_that_cannot_be_loaded_is_passed_over(schema, state):
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=2)
    kernel.start("c", "1")
    submit(kernel)
    readable = store.load_snapshot(None, SCHEMA)
    submit(kernel, "another")
    store.save_snapshot(Snapshot(store.position, 0, schema, state))
    again = Kernel(store, Ticks(), snapshot_every=2)
    assert readable is not None
    assert again.state == kernel.state
    assert state_at(store, None) == kernel.state


def test_restart_that_folded_many_facts_takes_a_snapshot_at_once():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=1_000)
    kernel.start("c", "1")
    for number in range(10):
        submit(kernel, f"job{number}")
    assert store.load_snapshot(None, SCHEMA) is None
    again = Kernel(store, Ticks(), snapshot_every=10)
    again.start("c", "1")
    assert store.load_snapshot(None, SCHEMA).position == again.durable


def test_any_moment_of_the_past_can_be_read():
    store = MemoryStore(CODEC)
    kernel = Kernel(store, Ticks(), snapshot_every=3)
    kernel.start("c", "1")
    for number in range(10):
        submit(kernel, f"job{number}")
    for position in range(1, store.position + 1):
        assert len(state_at(store, position).tasks) == position - 1


def test_a_log_of_a_newer_release_is_refused_and_kept(tmp_path):
    path = tmp_path / "log.db"
    with SqliteStore(path, CODEC) as store:
        Kernel(store, Ticks()).start("c", "1")
    older = Codec(kind for tag, kind in CODEC.kinds.items() if tag != "CoordinatorStarted")
    with SqliteStore(path, older) as store, pytest.raises(UnknownKind, match="CoordinatorStarted"):
        Kernel(store, Ticks())
    with SqliteStore(path, CODEC) as store:
        assert Kernel(store, Ticks()).state.cluster == "c"
