"""The NVIDIA GPUs of this host, and which of them a process may use.

`CUDA_VISIBLE_DEVICES` lists those; NVML, which reads the metrics, ignores it and sees all GPUs. An
agent divides its GPUs among its slots, so a worker sees only its own. Indexes are NVML's;
`CUDA_DEVICE_ORDER` makes CUDA use the same.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import takewhile

import pynvml  # type: ignore[import-untyped]
from msgspec import Struct

from strata.config import inherited
from strata.core.workers.heartbeats import GpuMetrics

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_cards() -> list[str]:
    """The GPUs that this process may use, each by its index or UUID."""
    named = inherited().get(VISIBLE)
    if named is None:
        return [str(index) for index in range(present_count())]
    return list(takewhile(_exists, (name.strip() for name in named.split(","))))


def shares(cards: Sequence[str], slots: int) -> list[list[str]]:
    """The GPUs of each slot: the same number for all, or one shared by several slots."""
    each = len(cards) // slots
    if each or not cards:
        return [list(cards[each * slot : each * (slot + 1)]) for slot in range(slots)]
    return [[cards[slot % len(cards)]] for slot in range(slots)]


def seen_as(cards: Sequence[str]) -> dict[str, str]:
    """The variables that restrict a process to these GPUs; empty without GPUs."""
    if not cards:
        return {}
    order = {} if VISIBLE in inherited() else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {VISIBLE: ",".join(dict.fromkeys(cards)), **order}


class CardId(Struct, frozen=True):
    """A GPU by what its driver tells: the index is -1 and the UUID empty if it does not."""

    index: int
    uuid: str

    @property
    def key(self) -> str:
        """The UUID, or the index without one."""
        return self.uuid or str(self.index)


def identified(name: str) -> CardId:
    """A GPU, given its index or UUID."""
    known = CardId(int(name), "") if name.isdigit() else CardId(-1, name)
    if not present_count():
        return known
    try:
        handle = handle_of(name)
        uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        return CardId(int(pynvml.nvmlDeviceGetIndex(handle)), uuid)
    except pynvml.NVMLError as error:
        log.debug("the driver does not identify GPU %s: %s", name, error)
        return known


class Cards:
    """Some GPUs of this host; none without a driver."""

    def __init__(self, names: Iterable[str]) -> None:
        self._cards: list[tuple[int, str, object]] = []
        for name in names if present_count() else ():
            try:
                handle = handle_of(name)
                index = pynvml.nvmlDeviceGetIndex(handle)
                self._cards.append((index, text(pynvml.nvmlDeviceGetName(handle)), handle))
            except pynvml.NVMLError as error:
                log.debug("no metrics for GPU %s: %s", name, error)

    def read(self) -> list[GpuMetrics]:
        """The current metrics of each GPU; one that does not answer is left out."""
        read = []
        for index, name, handle in self._cards:
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                use = utilization(handle)
            except pynvml.NVMLError as error:
                log.debug("GPU %d does not answer: %s", index, error)
                continue
            read.append(
                GpuMetrics(
                    index=index,
                    name=name,
                    utilization_percent=use or 0.0,
                    memory_used_bytes=int(memory.used),
                    memory_total_bytes=int(memory.total),
                    partitioned=use is None,
                )
            )
        return read


def utilization(handle: object) -> float | None:
    """The utilization of a GPU in percent; None for a partitioned one, which does not report it."""
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError_NotSupported:
        return None


def text(name: str | bytes) -> str:
    """A GPU's name; older drivers return bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def present_count() -> int:
    """The number of GPUs of this host."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        log.debug("no GPU metrics: %s", error)
        return 0


def _exists(name: str) -> bool:
    """Whether a GPU exists; CUDA ignores all names after one that does not."""
    return name not in ("", "-1")


def handle_of(name: str) -> object:
    """NVML's handle of a GPU, given its index or UUID."""
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)
