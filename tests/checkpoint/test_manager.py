"""Guards the behaviour of `CheckpointManager`, on a folder and on a real S3 server."""

import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.manifest import CheckpointInfo
from strata.errors import AlreadyExists, InvalidArgument, NotFound, StrataError, Unavailable
from tests.checkpoint.conftest import assert_same, sample_state


def test_saved_state_is_loaded(manager, state):
    saved = manager.save(state, step=7, epoch=1)
    manager.wait_pending()
    assert_same(manager.load(), state)
    assert_same(manager.load(saved), state)
    assert manager.loaded.checkpoint_id == saved


@pytest.mark.parametrize("size", [0, 1, 4096, 40_000_001])
def test_bytes_are_loaded_as_bytes(manager, size):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    manager.save(data, step=5000, epoch=2)
    manager.wait_pending()
    assert manager.load() == data


def test_bytes_are_not_copied(local):
    data = bytes(3_000_000)
    local.save(data, step=1)
    local.wait_pending()
    assert local._staging.size_bytes == 0


def test_save_returns_a_described_checkpoint(manager, state):
    before = time.time()
    saved = manager.save(state, step=7, epoch=3, metadata={"loss": 0.5, "tags": ["a"]})
    manager.wait_pending()
    info = manager.latest()
    assert isinstance(info, CheckpointInfo)
    assert (info.checkpoint_id, info.step, info.epoch) == (saved, 7, 3)
    assert info.path == f"{manager.storage.url}/{saved}"
    assert info.size_bytes > 300 * 7 * 4
    assert before <= info.created_at <= time.time()
    assert info.metadata == {"loss": 0.5, "tags": ["a"]}
    assert manager.get_latest() == info
    assert manager.all_checkpoints() == [info]


def test_empty_folder_has_no_checkpoints(manager):
    assert manager.latest() is None
    assert manager.get_by_step(1) is None
    assert manager.all_checkpoints() == []
    with pytest.raises(NotFound, match="no checkpoint in"):
        manager.load()
    with pytest.raises((NotFound, Unavailable), match=r"there is no checkpoint|does not exist"):
        manager.load("step-00000001-a")


def test_the_state_may_change_as_soon_as_save_returns(manager):
    array = np.zeros(5_000_000, np.float32)
    manager.save({"a": array}, step=1)
    array += 1
    manager.wait_pending()
    assert manager.load()["a"].max() == 0


def test_latest_is_the_highest_step_and_of_one_step_the_last_committed(manager):
    for step in (3, 9, 5):
        manager.save(b"%d" % step, step=step)
    manager.save(b"again", step=9)
    manager.wait_pending()
    assert manager.load() == b"again"
    assert [info.step for info in manager.all_checkpoints()] == [3, 5, 9, 9]
    assert manager.load(manager.get_by_step(5).checkpoint_id) == b"5"
    assert manager.get_by_step(4) is None


def test_another_manager_sees_a_commit_at_once(storage):
    with CheckpointManager(storage) as one, CheckpointManager(storage) as other:
        assert other.latest() is None
        one.save(b"x", step=1)
        one.wait_pending()
        assert other.load() == b"x"


def test_new_process_sees_a_committed_checkpoint(local, state):
    local.save(b"from before", step=4)
    local.wait_pending()
    script = (
        "import sys\nfrom strata.checkpoint.manager import CheckpointManager\n"
        "manager = CheckpointManager(sys.argv[1])\n"
        "print(manager.latest().step, manager.load())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, local.storage.url], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("4 b'from before'\n", "")


def test_script_that_ends_after_save_still_commits(tmp_path):
    script = (
        "import sys\nfrom strata.checkpoint.manager import CheckpointManager\n"
        "CheckpointManager(sys.argv[1]).save(bytes(50_000_000), step=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert CheckpointManager(tmp_path).load() == bytes(50_000_000)


def test_loading_into_a_state_fills_it_in_place(manager, state):
    manager.save(state, step=1)
    manager.wait_pending()
    target = sample_state(2)
    weight, moment = target["model"]["weight"], target["optimizer"]["state"][0]["exp_avg"]
    loaded = manager.load(into=target)
    assert_same(loaded, state)
    assert loaded["model"]["weight"] is weight
    assert loaded["optimizer"]["state"][0]["exp_avg"] is moment
    assert_same(weight, state["model"]["weight"])


def test_non_contiguous_arrays_are_saved_and_filled(local):
    array = np.arange(24.0).reshape(4, 6)
    local.save({"a": array.T, "b": array[:, ::2], "c": array[1]}, step=1)
    local.wait_pending()
    backing = np.zeros((4, 6))
    loaded = local.load(into={"a": np.zeros((4, 6)).T, "b": backing[:, ::2], "c": np.zeros(6)})
    assert_same(loaded["a"].copy(), array.T.copy())
    assert_same(np.ascontiguousarray(backing[:, ::2]), array[:, ::2].copy())


def test_target_of_wrong_shape_is_refused_by_name(local):
    local.save({"a": {"b": np.zeros(5)}}, step=1)
    local.wait_pending()
    for wrong in (np.zeros(6), np.zeros(5, np.float32)):
        with pytest.raises(InvalidArgument, match=r"'a.b' was saved as F64 \[5\]"):
            local.load(into={"a": {"b": wrong}})


def test_targets_of_another_model_are_counted_and_nothing_is_filled(local):
    local.save({"first": np.ones(2), "layers": [np.ones(5) for _ in range(7)]}, step=1)
    local.wait_pending()
    target = {"first": np.zeros(2), "layers": [np.zeros(6) for _ in range(7)]}
    with pytest.raises(InvalidArgument, match=r"7 tensors do not fit: 'layers.0' .*; and 2 more"):
        local.load(into=target)
    assert not target["first"].any()


def test_tied_arrays_are_stored_once_and_loaded_tied(local):
    array = np.arange(1_000_000.0)
    local.save({"embedding": array, "head": array}, step=1)
    local.wait_pending()
    assert local.latest().size_bytes < 1.5 * array.nbytes
    loaded = local.load()
    assert loaded["head"] is loaded["embedding"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": {"b": object()}}, "'a.b' is a builtins.object"),
        ({"a": [1, {2, 3}]}, "'a.1' is a builtins.set"),
        ({"a": np.array([object()])}, "'a' has elements of type object"),
        ({"a": 1j}, "'a' is a builtins.complex"),
        ({"a": {object(): 1}}, "'a' has a key of type object"),
    ],
)
def test_unsupported_values_are_refused_by_name(local, value, named):
    with pytest.raises(InvalidArgument, match=named):
        local.save(value, step=1)
    assert local.latest() is None


@pytest.mark.parametrize("step", [-1, 1.5, "7", None, True])
def test_invalid_step_is_refused(local, step):
    with pytest.raises(InvalidArgument, match="step is"):
        local.save(b"", step=step)


def test_invalid_settings_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="keep_count is 0"):
        CheckpointManager(tmp_path, keep_count=0)
    with pytest.raises(InvalidArgument, match="when_busy"):
        CheckpointManager(tmp_path, when_busy="maybe")


def test_checkpoint_id_can_be_used_once(manager):
    assert (
        manager.save(b"first", step=1, checkpoint_id="step-00000001-mine") == "step-00000001-mine"
    )
    manager.wait_pending()
    manager.save(b"second", step=1, checkpoint_id="step-00000001-mine")
    with pytest.raises(AlreadyExists, match="already exists"):
        manager.wait_pending()
    assert manager.load("step-00000001-mine") == b"first"
    with pytest.raises(InvalidArgument, match="not a valid checkpoint id"):
        manager.save(b"", step=1, checkpoint_id="../mine")


class Gate:
    """Blocks the storage's writes until it is opened."""

    def __init__(self, manager, monkeypatch):
        self.opened = threading.Event()
        real = manager.storage.put_stream

        def put_stream(*arguments, **options):
            self.opened.wait(30)
            return real(*arguments, **options)

        monkeypatch.setattr(manager.storage, "put_stream", put_stream)


def test_save_is_skipped_while_another_is_in_flight_by_policy(storage, monkeypatch, caplog):
    with CheckpointManager(storage, when_busy="skip") as manager:
        gate = Gate(manager, monkeypatch)
        assert manager.save(b"one", step=1) is not None
        with caplog.at_level(logging.WARNING):
            assert manager.save(b"two", step=2) is None
        assert "step 2 is not saved: a save is still in flight" in caplog.text
        assert manager.latest() is None
        gate.opened.set()
        manager.wait_pending()
        assert manager.save(b"three", step=3) is not None
        manager.wait_pending()
        assert [info.step for info in manager.all_checkpoints()] == [1, 3]


def test_save_waits_while_another_is_in_flight_by_default(local, monkeypatch):
    gate = Gate(local, monkeypatch)
    array = np.zeros(1000)
    local.save({"a": array}, step=1)
    threading.Timer(0.1, gate.opened.set).start()
    array += 1
    local.save({"a": array}, step=2)
    local.wait_pending()
    assert [local.load(i.checkpoint_id)["a"][0] for i in local.all_checkpoints()] == [0, 1]


def test_save_progress_is_reported(local):
    assert local.progress is None
    local.save(bytes(1_000_000), step=1)
    local.wait_pending()
    progress = local.progress
    assert progress.written_bytes == progress.total_bytes > 1_000_000
    assert progress.committed


def refuse_streams(manager, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(manager.storage, "put_stream", refuse)
    monkeypatch.setattr("strata.checkpoint.write.save_job.RETRY_DELAYS_S", (0.01,))


@pytest.mark.parametrize("call", ["save", "wait_pending", "close"])
def test_background_error_is_raised_once_by_the_next_call(storage, monkeypatch, call):
    manager = CheckpointManager(storage)
    manager.save(b"good", step=1)
    manager.wait_pending()
    with monkeypatch.context() as patch:
        refuse_streams(manager, patch, Unavailable("the disk is full", hint="free some"))
        failed = manager.save(b"bad", step=2)
        manager._finish()
        arguments = {"save": [b"next", 3]}.get(call, [])
        with pytest.raises(
            Unavailable, match=f"{failed} was not saved: the disk is full"
        ) as raised:
            getattr(manager, call)(*arguments)
        assert raised.value.hint == "free some"
    manager.wait_pending()
    assert manager.latest().step == 1
    assert [found.name for found in manager.storage.walk() if failed in found.name] == []
    manager.save(b"after", step=4)
    manager.wait_pending()
    assert manager.load() == b"after"


def test_unexpected_background_error_is_raised(local, monkeypatch):
    refuse_streams(local, monkeypatch, ZeroDivisionError("a bug"))
    local.save(b"x", step=1)
    with pytest.raises(StrataError, match="ZeroDivisionError: a bug"):
        local.wait_pending()


def test_failed_storage_request_is_retried(local, monkeypatch):
    real, failures = local.storage.put_stream, [Unavailable("busy"), Unavailable("busy")]

    def put_stream(*arguments, **options):
        if failures:
            raise failures.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(local.storage, "put_stream", put_stream)
    monkeypatch.setattr("strata.checkpoint.write.save_job.RETRY_DELAYS_S", (0.01, 0.01))
    local.save(b"x", step=1)
    local.wait_pending()
    assert local.load() == b"x"


def test_unconfirmed_commit_is_rolled_back(local, monkeypatch):
    real = local.storage.put

    def put(name, data, *, if_absent=False):
        real(name, data, if_absent=if_absent)
        if name.endswith(".json"):
            raise Unavailable("the answer was lost")

    monkeypatch.setattr(local.storage, "put", put)
    monkeypatch.setattr("strata.checkpoint.write.save_job.RETRY_DELAYS_S", (0.01,))
    local.save(b"x", step=1)
    with pytest.raises(Unavailable):
        local.wait_pending()
    assert local.storage.walk() == []


def test_memory_does_not_grow_with_the_number_of_saves(local):
    state = {"a": np.zeros(2_000_000)}
    local.save(state, step=0)
    size = local._staging.size_bytes
    for step in range(1, 20):
        local.save(state, step=step)
    local.wait_pending()
    assert local._staging.size_bytes == size <= 16_000_000 * 1.1 + 4 * 2**20


def test_prepared_manager_allocates_nothing_in_the_first_save(local):
    state = {"a": np.zeros(2_000_000)}
    local.prepare(state)
    size = local._staging.size_bytes
    local.save(state, step=1)
    assert local._staging.size_bytes == size


def test_tensors_are_read_lazily_and_by_slice(manager):
    array = np.arange(3_000_000.0, dtype=np.float32).reshape(1000, 3000)
    manager.save({"a": array, "b": np.float32(3), "c": np.arange(5)}, step=1)
    manager.wait_pending()
    with manager.open() as reader:
        assert sorted(reader.names) == ["a", "b", "c"]
        assert_same(reader.tensor("c"), np.arange(5))
        assert_same(reader.tensor("b"), np.array(3, np.float32))
        assert_same(reader.slice("a", [400, 10], [20, 30]), array[400:420, 10:40].copy())
        assert_same(reader.slice("a", [0, 0], [0, 3000]), array[:0])
        with pytest.raises(NotFound, match="no tensor 'd'"):
            reader.tensor("d")
        with pytest.raises(InvalidArgument, match="is not within tensor 'a'"):
            reader.slice("a", [999, 0], [2, 1])
        assert reader.verify() == manager.latest().size_bytes
