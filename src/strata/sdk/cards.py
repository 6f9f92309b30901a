"""The NVIDIA cards of this host, and which of them a process may use.

`CUDA_VISIBLE_DEVICES` names those; NVML, by which cards are read, does not heed it and knows all.
An agent shares the cards that it may use out among its slots: to a worker its own are all there
are. Numbers are NVML's then, and CUDA's are the same where `CUDA_DEVICE_ORDER` says so.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import takewhile

import pynvml  # type: ignore[import-untyped]

from strata.config import inherited
from strata.core.resources import GpuMetrics

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_cards() -> list[str]:
    """The cards that this process may use, each by its number or its UUID."""
    named = inherited().get(VISIBLE)
    if named is None:
        return [str(index) for index in range(_present())]
    return list(takewhile(_exists, (name.strip() for name in named.split(","))))


def shares(cards: Sequence[str], slots: int) -> list[list[str]]:
    """What each slot has: as many cards as the others, or one together with others."""
    each = len(cards) // slots
    if each or not cards:
        return [list(cards[each * slot : each * (slot + 1)]) for slot in range(slots)]
    return [[cards[slot % len(cards)]] for slot in range(slots)]


def seen_as(cards: Sequence[str]) -> dict[str, str]:
    """The variables that make a process see these cards alone; none where there are none."""
    if not cards:
        return {}
    order = {} if VISIBLE in inherited() else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {VISIBLE: ",".join(dict.fromkeys(cards)), **order}


class Cards:
    """Some cards of this host; none where there is no driver."""

    def __init__(self, names: Iterable[str]) -> None:
        self._cards: list[tuple[int, str, object]] = []
        for name in names if _present() else ():
            try:
                handle = _handle(name)
                index = pynvml.nvmlDeviceGetIndex(handle)
                self._cards.append((index, text(pynvml.nvmlDeviceGetName(handle)), handle))
            except pynvml.NVMLError as error:
                log.debug("card %s is not shown: %s", name, error)

    def read(self) -> list[GpuMetrics]:
        """What each card does now; one that does not answer is left out."""
        read = []
        for index, name, handle in self._cards:
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                use = utilization(handle)
            except pynvml.NVMLError as error:
                log.debug("card %d does not answer: %s", index, error)
                continue
            read.append(GpuMetrics(index, name, use, int(memory.used), int(memory.total)))
        return read


def utilization(handle: object) -> float:
    """How busy a card is, in percent; a partitioned one does not tell and shows 0."""
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError_NotSupported:
        return 0.0


def text(name: str | bytes) -> str:
    """A card's name; older drivers give bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _present() -> int:
    """How many cards this host has."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        log.debug("no cards are shown: %s", error)
        return 0


def _exists(name: str) -> bool:
    """CUDA looks at no name after one that is none."""
    return name not in ("", "-1")


def _handle(name: str) -> object:
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)
