"""Cost of a checkpoint of CUDA tensors: the stall, and the training time that the copy takes.

Compared in the same rounds with: one copy into pinned memory (the limit if the device has no room
for a snapshot), a snapshot on the device (the limit if it has), `.cpu()`, and the modes of
torch.distributed.checkpoint: as documented, with its stager (pinned memory, staged in the
background), and in a process. A stall ends when the state may change. PyTorch 2.11 fails with a
KeyError when a stager with pinned memory is used a second time, so each save gets a new one, and
pays for its memory. Needs a CUDA device and PyTorch.

    python benchmarks/bench_checkpoint_gpu.py [--gib 8] [--rounds 5]

Prints one JSON object; the figures are medians.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from common import show

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.write import staging_copy

TENSORS = 64
GROUP = 20


class Figures(defaultdict):
    """The figures of all rounds by name, and the peers that could not be measured."""

    def __init__(self) -> None:
        super().__init__(list)
        self.failures: dict[str, list[str]] = {}


def make_state(gib: float) -> dict[str, torch.Tensor]:
    count = int(gib * 2**30) // TENSORS // 4
    return {f"layer-{i}": torch.randn(count, device="cuda") for i in range(TENSORS)}


def stall_s(work) -> float:
    """Seconds for which the host waits; the device may continue."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def whole_s(work) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


class Training:
    """Matrix products that keep the device busy, in steps of some milliseconds."""

    def __init__(self) -> None:
        self.left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.right = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def steps(self, count: int) -> float:
        """Seconds for some steps.

        It waits for its own stream, as training does that reads its loss, and not for other work of
        the device.
        """
        begun = time.perf_counter()
        for _ in range(count):
            torch.matmul(self.left, self.right)
        torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begun


class Limits:
    """Copies without any library: the limits of the device."""

    def __init__(self, state) -> None:
        self.state = state
        self.pinned = [
            torch.empty_like(value, device="cpu", pin_memory=True) for value in state.values()
        ]
        self.copies = [torch.empty_like(value) for value in state.values()]

    def pinned_copy(self) -> None:
        for target, value in zip(self.pinned, self.state.values(), strict=True):
            target.copy_(value, non_blocking=True)

    def device_copy(self) -> None:
        torch._foreach_copy_(self.copies, list(self.state.values()))

    def ordinary_copy(self) -> None:
        for value in self.state.values():
            value.cpu()


def train_on(state) -> None:
    """Change every tensor, because unchanged tensors would not be written."""
    torch._foreach_add_(list(state.values()), 1.0)


def measure_ours(figures, folder: Path, state, training: Training, rounds: int) -> None:
    with CheckpointManager(folder / "ours", keep_count=1) as manager:
        for step in range(3):
            train_on(state)
            manager.save(state, step=step)
            manager.wait_pending()
        plain_s = statistics.median(training.steps(GROUP) for _ in range(60))
        for turn in range(rounds):
            train_on(state)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            figures["ours_stall_s"].append(stall_s(partial(manager.save, state, 10 + turn)))
            manager.wait_pending()
            figures["ours_total_s"].append(time.perf_counter() - begun)
            train_on(state)
            torch.cuda.synchronize()
            begun, groups = time.perf_counter(), 0
            manager.save(state, step=1_000 + turn)
            while manager.busy:
                training.steps(GROUP)
                groups += 1
            spent_s = time.perf_counter() - begun
            manager.wait_pending()
            figures["ours_training_lost_share"].append(1 - groups * plain_s / spent_s)


def measure_without_room(figures, folder: Path, state, rounds: int) -> None:
    """Measure a save on a full device: the host waits for the copy."""
    before, staging_copy.take_snapshot = staging_copy.take_snapshot, lambda sources: None
    try:
        with CheckpointManager(folder / "full", keep_count=1) as manager:
            for step in range(rounds + 2):
                train_on(state)
                took_s = stall_s(partial(manager.save, state, step))
                manager.wait_pending()
                if step >= 2:
                    figures["ours_full_stall_s"].append(took_s)
    finally:
        staging_copy.take_snapshot = before


def measure_dcp(figures, folder: Path, state, rounds: int) -> None:
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    modes = {
        "dcp_documented": lambda: {},
        "dcp_pinned": lambda: {
            "async_stager": DefaultStager(
                StagingOptions(
                    use_pinned_memory=True,
                    use_shared_memory=False,
                    use_async_staging=True,
                    use_non_blocking_copy=True,
                )
            )
        },
        "dcp_process": lambda: {"async_checkpointer_type": AsyncCheckpointerType.PROCESS},
    }
    for name, options in modes.items():
        try:
            measure_mode(figures, name, folder, state, rounds, options)
        except Exception:
            figures.failures[name] = traceback.format_exc().splitlines()[-9:]
    torch.distributed.destroy_process_group()


def measure_mode(figures, name, folder, state, rounds, options) -> None:
    for turn in range(rounds + 1):
        where = folder / f"{name}-{turn}"
        torch.cuda.synchronize()
        begun = time.perf_counter()
        answer = dcp.async_save(state, checkpoint_id=str(where), **options())
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
        stall = time.perf_counter() - begun
        getattr(answer, "upload_completion", answer).result()
        if turn:  # the first one sets its memory up
            figures[f"{name}_stall_s"].append(stall)
            figures[f"{name}_total_s"].append(time.perf_counter() - begun)
        shutil.rmtree(where)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no CUDA device", file=sys.stderr)
        return
    state, figures = make_state(options.gib), Figures()
    training = Training()
    training.steps(50)
    limits = Limits(state)
    limits.pinned_copy()
    for _ in range(options.rounds):
        figures["pinned_copy_s"].append(whole_s(limits.pinned_copy))
        figures["device_copy_s"].append(whole_s(limits.device_copy))
    figures["ordinary_copy_s"].append(whole_s(limits.ordinary_copy))
    del limits
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure_ours(figures, Path(folder), state, training, options.rounds)
        measure_without_room(figures, Path(folder), state, options.rounds)
        measure_dcp(figures, Path(folder), state, min(options.rounds, 3))
    medians = {name: round(statistics.median(values), 5) for name, values in figures.items()}
    targets = {
        "stall_with_room_s": (medians["ours_stall_s"], 0.02),
        "stall_without_room_to_pinned": (
            round(medians["ours_full_stall_s"] / medians["pinned_copy_s"], 3),
            1.1,
        ),
        "training_lost_share": (medians["ours_training_lost_share"], 0.03),
    }
    show(
        "checkpoint_gpu",
        {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "gib": options.gib,
            "medians": medians,
            "not_measured": figures.failures,
            "targets": {
                name: f"{value} <= {bound}: {'met' if value <= bound else 'missed'}"
                for name, (value, bound) in targets.items()
            },
        },
    )


if __name__ == "__main__":
    main()
