"""The self-test of a host: memory, arithmetic, disk, GPUs, and the way to the coordinator.

Run as a program with the coordinator's host and port and a folder. It prints one line for each part
and exits with `FAILED` at the first one that failed. What cannot be tested here says so and is no
failure: GPUs without torch, what no time is left for, and a coordinator that does not answer,
because it may be restarting.
"""

import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pynvml  # type: ignore[import-untyped]

from strata.sdk.record.gpu_cards import handle_of, present_count, visible_cards

MEMORY_BYTES = 128 * 2**20
DISK_BYTES = 16 * 2**20
SIDE = 512
PRODUCT_DIGEST = "ed914bbe0d5f7198"
"""Of the product of two matrices of small integers, which every number format holds exactly."""

PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
RETRY_S = 0.25
ENOUGH_S = 7.0
"""No further part is started, and no connection is tried again, after this time."""

FAILED_GPU = "failed GPU: "
"""Begins the line that names the GPU, by its index or UUID, if only one GPU failed."""

FAILED = 3
"""The exit code of a failed part; Python exits with 1 or 2 when the test itself cannot run."""


class SelfTestFailure(Exception):
    """A part of the self-test failed; `gpu` is the name of the GPU if only that failed."""

    def __init__(self, text: str, gpu: str = "") -> None:
        super().__init__(text)
        self.gpu = gpu


def memory() -> str:
    """Write patterns to memory and read them back."""
    block = np.empty(MEMORY_BYTES, dtype=np.uint8)
    for pattern in PATTERNS:
        block[:] = pattern
        wrong = int(np.count_nonzero(block != pattern))
        if wrong:
            raise SelfTestFailure(f"{wrong} of {MEMORY_BYTES} bytes lost the pattern {pattern:#x}")
    return f"{len(PATTERNS)} patterns in {MEMORY_BYTES >> 20} MB"


def factors() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two matrices of small integers."""
    numbers = np.arange(SIDE * SIDE, dtype=np.int64).reshape(SIDE, SIDE) * 7919
    return (numbers + 1) % 97, (numbers + 2) % 97


def require_product(product: np.ndarray[Any, Any], where: str) -> None:
    """Raise unless a product of the factors is the right one."""
    whole = np.ascontiguousarray(product.astype(np.int64))
    found = hashlib.blake2b(whole.tobytes(), digest_size=8).hexdigest()
    if found != PRODUCT_DIGEST:
        raise SelfTestFailure(
            f"the matrix product on {where} has digest {found} instead of {PRODUCT_DIGEST}"
        )


def arithmetic() -> str:
    """Multiply matrices and compare the digest of the product."""
    left, right = factors()
    require_product(left.astype(np.float64) @ right.astype(np.float64), "the CPU")
    return "a matrix product has the expected digest"


def disk(folder: Path) -> str:
    """Write a file, and read the same bytes back."""
    path = folder / f"self-test-{os.getpid()}"
    block = np.random.default_rng(1).bytes(DISK_BYTES)
    try:
        with path.open("wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                # Read from the disk, not from the memory that holds what was just written.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if path.read_bytes() != block:
            raise SelfTestFailure(f"{path} was read back with other bytes")
    except OSError as error:
        raise SelfTestFailure(f"{DISK_BYTES >> 20} MB cannot be written: {error}") from error
    finally:
        path.unlink(missing_ok=True)
    return f"{DISK_BYTES >> 20} MB written and read back"


def network(host: str, port: int, until_s: float) -> str:
    """Connect to the coordinator; try again until a time of the monotonic clock."""
    while True:
        began_s = time.monotonic()
        try:
            socket.create_connection((host, port), max(until_s - began_s, RETRY_S)).close()
        except OSError as error:
            if time.monotonic() + RETRY_S >= until_s:
                return f"not tested: cannot connect to {host}:{port}: {error}"
            time.sleep(RETRY_S)
        else:
            return f"connected to the coordinator in {(time.monotonic() - began_s) * 1000:.1f} ms"


def gpus() -> str:
    """Multiply the matrices on each GPU."""
    cards = visible_cards()
    if not cards:
        return "not tested: there is none"
    try:
        import torch
    except ImportError:
        return "not tested: torch is not installed"
    if torch.version.cuda is None:
        return "not tested: this torch is built without CUDA"
    found = torch.cuda.device_count()
    if found < (1 if partitioned(cards) else len(cards)):
        raise SelfTestFailure(f"CUDA finds {found} of {len(cards)} GPUs ({', '.join(cards)})")
    left, right = (torch.from_numpy(each).double() for each in factors())
    for number in range(found):
        name = cards[number]
        try:
            device = torch.device("cuda", number)
            # float32 may use TF32, which rounds; float64 does not.
            product = left.to(device) @ right.to(device)
            require_product(product.cpu().numpy(), f"GPU {name}")
        except SelfTestFailure as failure:
            raise SelfTestFailure(str(failure), name) from failure
        except RuntimeError as error:
            raise SelfTestFailure(f"GPU {name}: {error}", name) from error
    return f"a matrix product on {found} GPUs has the expected digest"


def partitioned(cards: list[str]) -> bool:
    """Whether a GPU is divided by MIG: a process then sees one part of one GPU."""
    if any(name.startswith("MIG-") for name in cards):
        return True
    for name in cards if present_count() else ():
        try:
            if pynvml.nvmlDeviceGetMigMode(handle_of(name))[0]:
                return True
        except pynvml.NVMLError:
            continue  # a model without MIG, or a GPU that does not exist
    return False


def main(host: str, port: str, folder: str) -> int:
    """Run all parts; returns the exit code."""
    began_s = time.monotonic()
    parts: dict[str, Callable[[], str]] = {
        "disk": lambda: disk(Path(folder)),
        "arithmetic": arithmetic,
        "memory": memory,
        "GPUs": gpus,
        "network": lambda: network(host, int(port), began_s + ENOUGH_S),
    }
    for name, part in parts.items():
        if time.monotonic() - began_s > ENOUGH_S:
            print(f"{name}: not tested: no time was left", flush=True)
            continue
        try:
            print(f"{name}: {part()}", flush=True)
        except SelfTestFailure as failure:
            print(f"{name}: {failure}", flush=True)
            if failure.gpu:
                print(f"{FAILED_GPU}{failure.gpu}", flush=True)
            return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
