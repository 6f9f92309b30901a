"""Checks of the GPUs: driver, torch's CUDA, nccl. Torch runs in a process of its own, for it takes
seconds to import and may crash with a driver that does not fit."""

import subprocess
import sys
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
from msgspec import Struct
from msgspec.json import decode

from strata.cli.support.doctor.check_result import Check, fix, ok, unchecked
from strata.cli.support.doctor.host_checks import installed
from strata.timeline.read.sentences import counted

TORCH_S = 120.0
NO_GPU = "there is no NVIDIA GPU"
PROGRAM = """
import json, torch
found = {"cuda": torch.version.cuda or "", "devices": torch.cuda.device_count(), "nccl": ""}
distributed = torch.distributed
if found["devices"] and distributed.is_available() and distributed.is_nccl_available():
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    ones = torch.ones(1024, device="cuda:0")
    distributed.all_reduce(ones)
    assert ones.sum().item() == 1024
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    distributed.destroy_process_group()
print(json.dumps(found))
"""


class TorchFound(Struct):
    """What torch says of CUDA; `nccl` is its version after an all-reduce that was right."""

    cuda: str
    devices: int
    nccl: str


def gpu_checks() -> list[Check]:
    """The checks of the driver, of torch with it, and of nccl."""
    driver, cards = _driver()
    if not cards:
        return [driver, unchecked("torch with CUDA", NO_GPU), unchecked("nccl", NO_GPU)]
    if not installed("torch"):
        reason = "torch is not installed"
        return [driver, unchecked("torch with CUDA", reason), unchecked("nccl", reason)]
    return [driver, *_torch(cards)]


def _driver() -> tuple[Check, int]:
    """The check of the driver, and the number of GPUs."""
    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        count = pynvml.nvmlDeviceGetCount()
        models = {str(pynvml.nvmlDeviceGetName(_handle(index))) for index in range(count)}
    except pynvml.NVMLError as error:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            reason = f"there are GPUs, but the driver does not answer: {error}"
            return fix("GPU driver", reason, "nvidia-smi shows why; reload or reinstall it"), 0
        return unchecked("GPU driver", f"no NVIDIA driver is installed ({error})"), 0
    if not count:
        return unchecked("GPU driver", f"{name}, but {NO_GPU}"), 0
    text = f"{name} for CUDA {cuda // 1000}.{cuda % 1000 // 10}: {count} × {', '.join(models)}"
    return ok("GPU driver", text), count


def _handle(index: int) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def _torch(cards: int) -> list[Check]:
    """Torch with CUDA, and an all-reduce by nccl."""
    command = [sys.executable, "-c", PROGRAM]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        late = f"torch did not answer within {TORCH_S:g} s"
        return [fix("torch with CUDA", late, "nvidia-smi"), unchecked("nccl", late)]
    if ran.returncode:
        last = ([*filter(None, map(str.strip, ran.stderr.splitlines()))] or ["no output"])[-1]
        reason = f"torch failed with exit code {ran.returncode}: {last[:200]}"
        again = f"{sys.executable} -c 'import torch; print(torch.zeros(1).cuda())'"
        return [fix("torch with CUDA", reason, again), unchecked("nccl", "torch failed")]
    found = decode(ran.stdout.splitlines()[-1], type=TorchFound)
    if not found.cuda:
        other = "install torch with CUDA: https://pytorch.org/get-started/locally"
        reason = "this torch is built without CUDA"
        return [fix("torch with CUDA", reason, other), unchecked("nccl", reason)]
    if not found.devices:
        reason = f"torch for CUDA {found.cuda} finds no GPU, the driver {counted(cards, 'GPU')}"
        hint = "install a torch for the driver's CUDA, and check CUDA_VISIBLE_DEVICES"
        return [fix("torch with CUDA", reason, hint), unchecked("nccl", reason)]
    seen = ok("torch with CUDA", f"CUDA {found.cuda}, {counted(found.devices, 'GPU')} visible")
    if not found.nccl:
        return [seen, fix("nccl", "this torch is built without it", "install torch from PyPI")]
    return [seen, ok("nccl", f"{found.nccl}: an all-reduce on GPU 0 is right")]
