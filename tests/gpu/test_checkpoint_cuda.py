"""Guards what a checkpoint does with CUDA memory, on a real device; skipped without one.

Also a program, for machines without pytest: `python tests/gpu/test_checkpoint_cuda.py`. It prints
what each check found, and the figures of the stall.
"""

import gc
import sys
import tempfile
import time
import traceback
import unittest

import numpy as np

try:
    import torch
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available():
    raise unittest.SkipTest("no CUDA device here")

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.manifest import decode_manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.write.device_checksums import ROW_WORDS, RowSums, weights
from strata.checkpoint.write.device_snapshot import copy_from_devices, has_room
from strata.checkpoint.write.rank_shares import own_share
from strata.checkpoint.write.replica_digests import ReplicaDigests
from strata.checkpoint.write.staging import Staging
from strata.sdk.peers.blob_client import PeerClient
from strata.sdk.peers.blob_server import Blobs
from strata.sdk.state.model_offer import ModelOffer, model_id

GIB = 2**30
CARD = torch.device("cuda", torch.cuda.current_device())


class Silent:
    """A recorder that records nothing."""

    progress_interval_s = 60.0

    def emit(self, fact, **more):
        return ""


def numbers(value, count=8_000_000):
    return {"weight": torch.full((count,), float(value), device=CARD), "step": torch.tensor(value)}


def test_every_peer_receives_the_model_as_it_is_given():
    """The third transfer once arrived as zeros: the driver copied to pages of an older mapping."""
    blobs = Blobs(Silent())
    blobs.token = "secret"
    giver, address = ModelOffer(blobs), blobs.address(("127.0.0.1", 1))
    try:
        for generation in range(1, 7):
            giver.offer(numbers(generation), generation, 1, peers=1, data={})
            peer = PeerClient("giver", address, "secret", "me", generation, Silent())
            name = f"{model_id(generation)}.json"
            manifest = decode_manifest(peer.get(name), name)
            with CheckpointReader(peer, manifest) as reader:
                found = reader.load()
            peer.confirm(name)
            assert (found["weight"] == generation).all(), (generation, found["weight"][:3])
            assert int(found["step"]) == generation
            del found
            gc.collect()
    finally:
        blobs.close()


def test_freed_memory_is_not_treated_as_pinned():
    for round in range(12):
        state = numbers(round + 1, 1_000_000 * (1 + round % 3))
        capture = Staging().capture(flatten(state), {})
        capture.complete()
        (placed,) = [each for each in capture.placed if each.name == "weight"]
        view = capture.view(placed.offset, placed.source.size_bytes)
        assert (np.frombuffer(view, np.float32) == round + 1).all(), round


def test_copy_is_synchronous_without_memory_for_a_snapshot():
    staging = Staging()
    flat = flatten(numbers(5))
    source = flat.sources["weight"]
    for _ in range(3):
        memory = staging.prepare(source.size_bytes)
        slot = np.frombuffer(memory, np.uint8)[: source.size_bytes]
        copy_from_devices([(source, slot)], memory)
        assert memory.unpin is not None, "the buffer is pinned"
        assert (slot.view(np.float32) == 5).all()
        del memory, slot
        staging.close()


def reference(tensor):
    data = tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
    padded = data.ljust(-(-len(data) // (4 * ROW_WORDS)) * 4 * ROW_WORDS, b"\0")
    words = np.frombuffer(padded, np.int32).reshape(-1, ROW_WORDS).astype(np.int64)
    return (words * weights()).sum(axis=1).tobytes()


def test_sums_on_the_device_are_those_of_the_bytes():
    base = torch.randn(40_000_000, device=CARD)
    tensors = [
        base,
        torch.randn(7, device=CARD),
        torch.randn(640, 500, device=CARD).t(),
        base.view(torch.uint8)[3:20_001],
        torch.randn(5_000, device=CARD).to(torch.bfloat16)[1:],
        torch.randint(0, 2, (9_001,), device=CARD).bool(),
        torch.randn(33, 17, dtype=torch.complex128, device=CARD).conj(),
        torch.tensor(5, device=CARD),
        torch.zeros(0, 3, device=CARD),
        torch.randn(4 * ROW_WORDS, device=CARD).to(torch.float8_e5m2fnuz),
    ]
    found = RowSums(torch, CARD, tensors)
    expected = [reference(each) for each in tensors]
    base += 1  # after the sums, in the same stream
    assert found.read() == expected


def test_every_element_type_is_saved_from_the_device_and_filled_there():
    names = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    names += ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "int64", "int32", "int16"]
    names += ["int8", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"]
    source = (torch.rand(70_000, device=CARD) * 10).reshape(700, 100)
    state = {name: source.to(getattr(torch, name)) for name in names}
    state["turned"] = source.t()
    with tempfile.TemporaryDirectory() as folder, CheckpointManager(folder) as manager:
        manager.save(state, step=1)
        manager.wait_pending()
        into = {name: torch.zeros_like(each) for name, each in state.items()}
        manager.load(into=into)
        for name, each in state.items():
            one, other = (e.contiguous().view(torch.uint8) for e in (into[name], each))
            assert torch.equal(one, other), name


def test_snapshot_leaves_memory_for_the_next_step():
    """A state and activations that fit together, and not with a second state beside them."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - 14 * GIB, dtype=torch.uint8, device=CARD)
    state = {f"{i}": torch.ones(GIB // 4, device=CARD) for i in range(3)}

    def step():
        return [torch.empty(GIB, dtype=torch.uint8, device=CARD) for _ in range(9)]

    step()  # the activations are given back to PyTorch's cache
    sources = [*flatten(state).sources.values()]
    assert not has_room(torch, sources)
    with tempfile.TemporaryDirectory() as folder, CheckpointManager(folder) as manager:
        manager.prepare(state)
        manager.save(state, step=1)
        step()  # no torch.cuda.OutOfMemoryError
        manager.wait_pending()
    del hog, state, sources
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert has_room(torch, [*flatten(numbers(1)).sources.values()])


def stall(world_size, tensors=300, size_bytes=1_500_000_000):
    """Milliseconds for which the first, second and third save of a state stop
    the training thread.
    """
    count = size_bytes // tensors // 4
    state = {f"layer-{i}": torch.randn(count, device=CARD) for i in range(tensors)}
    staging, figures = Staging(), []
    own = own_share(flatten(state), 0, world_size)
    begun_s = time.perf_counter()
    staging.prepare_in_background([*own.values()]).join()
    prepared_ms = (time.perf_counter() - begun_s) * 1e3
    for _ in range(3):
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        flat = flatten(state)
        own = own_share(flat, 0, world_size)
        digests = ReplicaDigests(flat.sources, own, 0, world_size)
        capture = staging.begin(FlatState(flat.tree, own), {})
        digests.take()
        taken_ms = (time.perf_counter() - begun_s) * 1e3
        capture.fill()
        figures.append((taken_ms, (time.perf_counter() - begun_s) * 1e3))
        torch.cuda.synchronize()
        whole_ms = (time.perf_counter() - begun_s) * 1e3
        capture.complete()
        figures[-1] += (whole_ms,)
    return prepared_ms, figures


def test_the_first_save_is_as_quick_as_the_others():
    """Prints figures to compare; the tests above check that the copies are right."""
    for world_size in (1, 2):
        for tensors in (300, 2_000):
            prepared_ms, figures = stall(world_size, tensors)
            shown = ", ".join(
                f"{stop:.1f} (digests by {taken:.1f}, device done at {whole:.1f})"
                for taken, stop, whole in figures
            )
            print(
                f"1.5 GB in {tensors} tensors, {world_size} ranks: staging ready after "
                f"{prepared_ms:.0f} ms in the background; stall in ms: {shown}"
            )


def main():
    failed = []
    for name, check in [*globals().items()]:
        if name.startswith("test_"):
            begun_s = time.perf_counter()
            try:
                check()
            except Exception:
                traceback.print_exc()
                failed.append(name)
            took_s = time.perf_counter() - begun_s
            print(f"{'FAILED' if name in failed else 'ok'} {name} ({took_s:.1f} s)", flush=True)
            gc.collect()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
