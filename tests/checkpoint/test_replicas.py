"""Guards that a checkpoint is committed only if every rank held the same replicated state."""

import numpy as np
import pytest

from strata.checkpoint.state.sharded_tensors import Sharded
from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.state.stateful import plain
from strata.checkpoint.write import device_checksums
from strata.checkpoint.write.device_checksums import ROW_WORDS, RowSums, weights
from strata.checkpoint.write.part_sidecar import Sidecar, manifest_of
from strata.checkpoint.write.part_writer import write_part
from strata.checkpoint.write.rank_shares import own_share, shape_digest
from strata.checkpoint.write.replica_digests import ReplicaDigests
from strata.checkpoint.write.staging import Staging
from strata.errors import InvalidArgument
from strata.storage.folder import LocalStorage

CHECKPOINT = "step-00000001-1"
WORLD_SIZE = 3


def sample(rank, seed=1):
    """A state that is equal on all ranks, except for a shard of a larger tensor."""
    random = np.random.default_rng(seed)
    return {
        "large": random.standard_normal((3_001, 5_00)),
        "turned": random.standard_normal((40, 30)).astype(np.float32).T,
        "small": random.integers(0, 9, 7),
        "scalar": np.float32(random.random()),
        "empty": np.zeros((0, 4)),
        "raw": b"some bytes",
        "dates": np.arange(5).astype("datetime64[s]"),
        "piece": Sharded(np.full(4, rank), [4 * WORLD_SIZE], [4 * rank]),
    }


def saved(storage, states, change=lambda rank: None):
    """The sidecars of ranks that save; `change` is called when training may continue."""
    sidecars = []
    for rank, state in enumerate(states):
        flat = flatten(plain(state))
        own = own_share(flat, rank, len(states))
        digests = ReplicaDigests(flat.sources, own, rank, len(states))
        digests.take()
        capture = Staging().capture(FlatState(flat.tree if rank == 0 else None, own), {})
        change(rank)
        part = write_part(storage, CHECKPOINT, rank, capture)
        sidecars.append(
            Sidecar(
                checkpoint_id=CHECKPOINT,
                step=1,
                epoch=0,
                attempt=1,
                world_size=len(states),
                shapes=shape_digest(flat),
                replicas=digests.finish(part),
                part=part,
            )
        )
    return sidecars


def test_equal_replicas_are_committed(tmp_path):
    states = [sample(rank) for rank in range(WORLD_SIZE)]
    sidecars = saved(LocalStorage(tmp_path), states)
    assert manifest_of(sidecars, 1, 1).world_size == WORLD_SIZE
    names = sidecars[0].replicas.names
    assert names == ["dates", "empty", "large", "raw", "scalar", "small", "turned"]
    assert [len(each.replicas.digests) for each in sidecars] == [8 * len(names)] * WORLD_SIZE


@pytest.mark.parametrize("rank", range(WORLD_SIZE))
@pytest.mark.parametrize("row", [0, 1_500, 3_000])
def test_differing_element_error_names_rank_and_tensor(tmp_path, rank, row):
    """Also for a rank that does not write the row: it has hashed it."""
    states = [sample(each) for each in range(WORLD_SIZE)]
    states[rank]["large"][row, 7] = np.nextafter(states[rank]["large"][row, 7], 9)
    sidecars = saved(LocalStorage(tmp_path), states)
    others = ", ".join(str(each) for each in range(WORLD_SIZE) if each != rank)
    told = f"rank {rank} differs from ranks {others} in 1 of 7 tensors: 'large'"
    with pytest.raises(InvalidArgument, match=told):
        manifest_of(sidecars, 1, 1)


@pytest.mark.parametrize("name", ["turned", "small", "dates"])
def test_tensors_that_one_rank_writes_alone_are_compared_on_all(tmp_path, name):
    for rank in range(WORLD_SIZE):
        states = [sample(each) for each in range(WORLD_SIZE)]
        states[rank][name] = states[rank][name][::-1].copy()
        with pytest.raises(InvalidArgument, match=rf"rank {rank} differs .*: '{name}'"):
            manifest_of(saved(LocalStorage(tmp_path), states), 1, 1)


def test_error_for_many_differing_tensors_counts_them_and_names_some(tmp_path):
    states = [sample(0, seed=1), sample(1, seed=2)]
    with pytest.raises(InvalidArgument, match=r"rank 1 differs from rank 0 in 4 of 7 tensors"):
        manifest_of(saved(LocalStorage(tmp_path), states), 1, 1)


def test_changes_after_the_capture_are_not_compared(tmp_path):
    states = [sample(rank) for rank in range(WORLD_SIZE)]

    def train_on(rank):
        states[rank]["large"] += rank
        states[rank]["small"] += rank

    assert manifest_of(saved(LocalStorage(tmp_path), states, train_on), 1, 1)


def test_one_rank_alone_hashes_nothing_twice(tmp_path):
    (sidecar,) = saved(LocalStorage(tmp_path), [sample(0)])
    assert sidecar.replicas.digests == b""


def test_batch_norm_buffers_are_replicated_state(tmp_path):
    torch = pytest.importorskip("torch")
    states = []
    for rank in range(2):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
        model(torch.full((8, 4), 1.0 + rank) * torch.rand(8, 4))
        states.append({"model": model})
    told = "rank 1 differs from rank 0 in 2 of 7 tensors: 'model.1.running_mean', "
    with pytest.raises(InvalidArgument, match=told):
        manifest_of(saved(LocalStorage(tmp_path), states), 1, 1)


def reference(data):
    """What `RowSums` computes, in plain NumPy."""
    padded = data.ljust(-(-len(data) // (4 * ROW_WORDS)) * 4 * ROW_WORDS, b"\0")
    words = np.frombuffer(padded, np.int32).reshape(-1, ROW_WORDS).astype(np.int64)
    return (words * weights()).sum(axis=1).tobytes()


def test_sums_of_a_device_are_those_of_the_bytes(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(device_checksums, "CHUNK_ROWS", 3)
    base = torch.randn(30_000)
    tensors = [
        base,
        torch.randn(7),
        torch.randn(64, 50).t(),
        base.view(torch.uint8)[3:20_001],
        torch.randn(5_000).to(torch.bfloat16)[1:],
        torch.randint(0, 2, (9_001,)).bool(),
        torch.randn(33, 17, dtype=torch.complex128).conj(),
        torch.tensor(5),
        torch.zeros(0, 3),
        torch.randn(4 * ROW_WORDS),
    ]
    expected = [
        reference(each.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for each in tensors
    ]
    assert RowSums(torch, torch.device("cpu"), tensors).read() == expected


def test_sums_of_a_device_tell_small_and_symmetric_changes_apart():
    torch = pytest.importorskip("torch")

    def sums(tensor):
        return RowSums(torch, torch.device("cpu"), [tensor]).read()

    base = torch.randn(5_000)
    swapped = base.clone()
    swapped[10], swapped[11] = base[11], base[10]
    balanced = base.clone().view(torch.int32)
    balanced[20] += 1
    balanced[21] -= 1
    signs = base.clone()
    signs[[30, 31]] *= -1
    found = {tuple(sums(each)) for each in (base, swapped, balanced.view(torch.float32), signs)}
    assert len(found) == 4
