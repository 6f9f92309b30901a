"""Guards that a state is written while it is still being copied, and never before it is there."""

import itertools
import threading
import time
import types

import numpy as np
import pytest

from strata.checkpoint import filling, staging
from strata.checkpoint.arrays import source_of
from strata.checkpoint.cuda import has_room
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.parts import write_part
from strata.checkpoint.staging import Staging
from strata.checkpoint.tree import flatten
from strata.errors import StrataError
from strata.storage.local import LocalStorage
from strata.storage.memory import huge_memory
from tests.sdk.harness import until

PATIENCE_S = 30.0


def large_state(count=6):
    return {f"layer-{i}": np.full(4 * 2**20, i, np.float32) for i in range(count)}


class Watched(LocalStorage):
    """Sets `writes` when it has taken a block."""

    def __init__(self, root, writes) -> None:
        super().__init__(root)
        self.writes = writes

    def put_stream(self, name, chunks, **more):
        def watched():
            for chunk in chunks:
                yield chunk
                self.writes.set()

        return super().put_stream(name, watched(), **more)


@pytest.fixture
def held_back(monkeypatch):
    """The last tensor is copied only when `may_end` is set."""
    may_end, copy = threading.Event(), filling.CopyJob.run

    def run(job):
        if job.source.value.flat[0] == 5:
            assert may_end.wait(PATIENCE_S), "nothing was written while the last tensor was missing"
        copy(job)

    monkeypatch.setattr(filling.CopyJob, "run", run)
    return may_end


def test_the_disk_gets_the_first_tensors_before_the_last_is_captured(tmp_path, held_back):
    with CheckpointManager(Watched(tmp_path, writes=held_back)) as manager:
        manager.save(large_state(), step=1)
        manager.wait_pending()
        assert all((array == i).all() for i, array in enumerate(manager.load().values()))


def test_what_changes_after_the_save_is_not_in_it(tmp_path):
    state = large_state()
    with CheckpointManager(tmp_path) as manager:
        for step in range(3):
            for array in state.values():
                array += 1
            manager.save(state, step=step)
            for array in state.values():
                array += 1_000
            manager.wait_pending()
            found = [array[-1] for array in manager.load().values()]
            assert found == [i + step + 1 + step * 1_000 for i in range(6)]


def test_a_state_that_cannot_be_copied_is_raised_once_and_leaves_nothing(tmp_path, monkeypatch):
    def run(job):
        raise MemoryError("no room")

    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": np.zeros(10)}, step=1)
        manager.wait_pending()
        with monkeypatch.context() as patch:
            patch.setattr(filling.CopyJob, "run", run)
            with pytest.raises(MemoryError, match="no room"):
                manager.save(large_state(), step=2)
        manager.save({"a": np.zeros(10)}, step=3)
        manager.wait_pending()
        assert [info.step for info in manager.all_checkpoints()] == [1, 3]


def test_whoever_writes_is_told_that_the_rest_will_not_come(tmp_path):
    capture = Staging().begin(flatten({"a": np.zeros(10)}), {})
    capture.abandon(ZeroDivisionError())
    storage = LocalStorage(tmp_path)
    with pytest.raises(StrataError, match=r"could not be copied.*ZeroDivision"):
        write_part(storage, "step-00000001-1", 0, capture)
    assert storage.walk() == []


def test_arrays_that_do_not_lie_in_order_are_there_with_the_ends_of_the_others(tmp_path):
    state = {"turned": np.arange(2**20, dtype=np.float32).reshape(1024, 1024).T, **large_state(2)}
    with CheckpointManager(tmp_path) as manager:
        for step in range(2):  # the second finds everything unchanged
            manager.save(state, step=step)
            manager.wait_pending()
            assert (manager.load()["turned"] == state["turned"]).all()


class Elsewhere:
    """A snapshot of tensors that lie on a device, which here is the host."""

    def __init__(self, sources) -> None:
        self.copies = [source.value.clone() for source in sources]

    def copy_to(self, slots, memory):
        for copy, slot in zip(self.copies, slots, strict=True):
            slot[:] = copy.numpy().view(np.uint8)


@pytest.mark.parametrize("room", [True, False])
def test_what_lies_on_devices_is_saved_as_it_was_with_what_does_not(tmp_path, monkeypatch, room):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(filling, "on_device", lambda source: source.value.dtype == torch.float64)
    monkeypatch.setattr(filling, "take_snapshot", Elsewhere if room else lambda sources: None)
    state = {"here": torch.ones(2**20), "there": torch.zeros(2**20, dtype=torch.float64)}
    with CheckpointManager(tmp_path) as manager:
        for step in range(1, 4):
            for tensor in state.values():
                tensor += 1
            manager.save(state, step=step)
            for tensor in state.values():
                tensor += 100
            manager.wait_pending()
            found = manager.load()
            assert (found["here"] == 1 + step + 100 * (step - 1)).all()
            assert (found["there"] == step + 100 * (step - 1)).all()


def seconds_to_sort(count, memory):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1)
    source = source_of(tensor, "a")
    placed = [filling.Placed(f"layer-{i}", source, i) for i in range(count)]
    begun_s = time.perf_counter()
    filling.Filling(placed, memory)
    return time.perf_counter() - begun_s


def test_sorting_tensors_by_device_takes_time_in_proportion_to_their_number(monkeypatch):
    places = itertools.cycle([True, False])
    monkeypatch.setattr(filling, "on_device", lambda source: next(places))
    memory = huge_memory(2**20)
    few, many = (min(seconds_to_sort(n, memory) for _ in range(5)) for n in (1_000, 8_000))
    assert many / few < 32, "8 times as many: 8 is linear, 64 is quadratic"


def test_a_capture_waits_for_memory_that_is_being_prepared(monkeypatch):
    """And takes it: the memory is made once, in the background."""
    made, may_end, populate = [], threading.Event(), staging.populate

    def slowly(memory):
        made.append(threading.current_thread().name)
        assert may_end.wait(PATIENCE_S)
        populate(memory)

    monkeypatch.setattr(staging, "populate", slowly)
    flat = flatten({"a": np.arange(1_000_000)})
    buffer = Staging()
    preparing = buffer.prepare_in_background([*flat.sources.values()])
    until(lambda: made)
    captures = []
    capturing = threading.Thread(target=lambda: captures.append(buffer.capture(flat, {})))
    capturing.start()
    may_end.set()
    for thread in (preparing, capturing):
        thread.join(PATIENCE_S)
    (capture,) = captures
    place = capture.placed[0]
    assert np.frombuffer(capture.view(place.offset, 8_000_000), np.int64)[-1] == 999_999
    assert made == ["strata-prepare"]


def test_memory_that_cannot_be_prepared_is_tried_again_by_the_capture(monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(staging, "huge_memory", lambda size_bytes: 1 / 0)
        buffer = Staging()
        buffer.prepare_in_background([]).join(PATIENCE_S)
    assert "staging memory of 1048576 bytes is not ready: ZeroDivisionError" in caplog.text
    assert buffer.capture(flatten({"a": np.zeros(3)}), {}).size_bytes


@pytest.mark.parametrize(
    ("free", "reserved", "most_reserved", "fits"),
    [
        (90, 40, 40, True),
        (27, 112, 112, False),  # what PyTorch has cached is what the next step needs
        (38, 40, 40, False),  # 32 fit, and 5 % of the device would not stay free
        (90, 40, 112, False),  # training gave memory back, and takes it again
    ],
)
def test_a_snapshot_leaves_the_device_what_training_needs(free, reserved, most_reserved, fits):
    gib = 2**30
    cuda = types.SimpleNamespace(
        mem_get_info=lambda device: (free * gib, 139 * gib),
        memory_reserved=lambda device: reserved * gib,
        max_memory_reserved=lambda device: most_reserved * gib,
    )
    value = types.SimpleNamespace(device="cuda:0")
    sources = [types.SimpleNamespace(value=value, size_bytes=16 * gib) for _ in range(2)]
    assert has_room(types.SimpleNamespace(cuda=cuda), sources) is fits
