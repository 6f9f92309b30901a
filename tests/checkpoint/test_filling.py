"""Guards that a state is written while it is still being copied, but never before it was copied."""

import itertools
import threading
import time
import types

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.state.array_bytes import source_of
from strata.checkpoint.state.state_tree import flatten
from strata.checkpoint.write import staging, staging_copy
from strata.checkpoint.write.device_snapshot import has_room
from strata.checkpoint.write.part_writer import write_part
from strata.checkpoint.write.staging import Staging
from strata.errors import StrataError
from strata.storage.folder import LocalStorage
from strata.storage.huge_pages import huge_memory
from tests.sdk.harness import until

TIMEOUT_S = 30.0


def large_state(count=6):
    return {f"layer-{i}": np.full(4 * 2**20, i, np.float32) for i in range(count)}


class Watched(LocalStorage):
    """A storage that sets `writes` when it has taken a block."""

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
    """A state whose last tensor is copied only when `may_end` is set."""
    may_end, copy = threading.Event(), staging_copy.CopyJob.run

    def run(job):
        if job.source.value.flat[0] == 5:
            assert may_end.wait(TIMEOUT_S), "nothing was written while the last tensor was missing"
        copy(job)

    monkeypatch.setattr(staging_copy.CopyJob, "run", run)
    return may_end


def test_writing_starts_before_the_capture_ends(tmp_path, held_back):
    with CheckpointManager(Watched(tmp_path, writes=held_back)) as manager:
        manager.save(large_state(), step=1)
        manager.wait_pending()
        assert all((array == i).all() for i, array in enumerate(manager.load().values()))


def test_changes_after_save_are_not_in_the_checkpoint(tmp_path):
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


def test_failed_copy_is_raised_once_and_leaves_no_files(tmp_path, monkeypatch):
    def run(job):
        raise MemoryError("no room")

    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": np.zeros(10)}, step=1)
        manager.wait_pending()
        with monkeypatch.context() as patch:
            patch.setattr(staging_copy.CopyJob, "run", run)
            with pytest.raises(MemoryError, match="no room"):
                manager.save(large_state(), step=2)
        manager.save({"a": np.zeros(10)}, step=3)
        manager.wait_pending()
        assert [info.step for info in manager.all_checkpoints()] == [1, 3]


def test_abandoned_capture_fails_the_writing_thread(tmp_path):
    capture = Staging().begin(flatten({"a": np.zeros(10)}), {})
    capture.abandon(ZeroDivisionError())
    storage = LocalStorage(tmp_path)
    with pytest.raises(StrataError, match=r"could not be copied.*ZeroDivision"):
        write_part(storage, "step-00000001-1", 0, capture)
    assert storage.walk() == []


def test_non_contiguous_arrays_are_copied_with_the_ends_of_the_others(tmp_path):
    state = {"turned": np.arange(2**20, dtype=np.float32).reshape(1024, 1024).T, **large_state(2)}
    with CheckpointManager(tmp_path) as manager:
        for step in range(2):  # the second finds everything unchanged
            manager.save(state, step=step)
            manager.wait_pending()
            assert (manager.load()["turned"] == state["turned"]).all()


class Elsewhere:
    """A snapshot of tensors on a device, which is the host in this test."""

    def __init__(self, sources) -> None:
        self.copies = [source.value.clone() for source in sources]

    def copy_to(self, slots, memory):
        for copy, slot in zip(self.copies, slots, strict=True):
            slot[:] = copy.numpy().view(np.uint8)


@pytest.mark.parametrize("room", [True, False])
def test_device_and_host_tensors_are_saved_together(tmp_path, monkeypatch, room):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(
        staging_copy, "on_device", lambda source: source.value.dtype == torch.float64
    )
    monkeypatch.setattr(staging_copy, "take_snapshot", Elsewhere if room else lambda sources: None)
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
    placed = [staging_copy.PlacedTensor(f"layer-{i}", source, i) for i in range(count)]
    begun_s = time.process_time()
    staging_copy.CopyProgress(placed, memory)
    return time.process_time() - begun_s


def test_sorting_tensors_by_device_is_linear(monkeypatch):
    places = itertools.cycle([True, False])
    monkeypatch.setattr(staging_copy, "on_device", lambda source: next(places))
    memory = huge_memory(2**20)
    few, many = (min(seconds_to_sort(n, memory) for _ in range(5)) for n in (1_000, 8_000))
    assert many / few < 32, "8 times as many: 8 is linear, 64 is quadratic"


def test_capture_waits_for_memory_that_is_being_prepared(monkeypatch):
    """It uses that memory, which is made once, in the background."""
    made, may_end, populate = [], threading.Event(), staging.populate

    def slowly(memory):
        made.append(threading.current_thread().name)
        assert may_end.wait(TIMEOUT_S)
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
        thread.join(TIMEOUT_S)
    (capture,) = captures
    place = capture.placed[0]
    assert np.frombuffer(capture.view(place.offset, 8_000_000), np.int64)[-1] == 999_999
    assert made == ["strata-prepare"]


def test_capture_retries_failed_memory_preparation(monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(staging, "huge_memory", lambda size_bytes: 1 / 0)
        buffer = Staging()
        buffer.prepare_in_background([]).join(TIMEOUT_S)
    assert "could not prepare 1048576 bytes of staging memory: ZeroDivisionError" in caplog.text
    assert buffer.capture(flatten({"a": np.zeros(3)}), {}).size_bytes


@pytest.mark.parametrize(
    ("free", "reserved", "most_reserved", "fits"),
    [
        (90, 40, 40, True),
        (27, 112, 112, False),  # what PyTorch has cached is what the next step needs
        (38, 40, 40, False),  # 32 fit, and 5 % of the device would not stay free
        (90, 40, 112, False),  # training freed memory, and takes it again
    ],
)
def test_snapshot_leaves_device_memory_for_training(free, reserved, most_reserved, fits):
    gib = 2**30
    cuda = types.SimpleNamespace(
        mem_get_info=lambda device: (free * gib, 139 * gib),
        memory_reserved=lambda device: reserved * gib,
        max_memory_reserved=lambda device: most_reserved * gib,
    )
    value = types.SimpleNamespace(device="cuda:0")
    sources = [types.SimpleNamespace(value=value, size_bytes=16 * gib) for _ in range(2)]
    assert has_room(types.SimpleNamespace(cuda=cuda), sources) is fits
