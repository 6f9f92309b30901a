"""The health of NVIDIA GPUs, read through NVML.

Each figure is asked for alone: a driver, a GPU model, a partitioned GPU or missing permissions may
refuse any of them, and such a figure is None. PCIe throughput is measured by the driver, which
takes 20 ms for each direction, so it is only read when asked for, in a thread; the counters of PCIe
bytes have 32 bits and overflow within a second. NVLink throughput follows from two readings of its
64-bit counters.

Xid errors are events that the driver keeps for a set that was registered before they happened;
each reading takes those that wait.
"""

import logging
import time
from collections.abc import Callable, Iterable
from ctypes import c_void_p, cast
from typing import Any

import pynvml  # type: ignore[import-untyped]

from strata.core.hosts.host_health import FATAL_XIDS, GpuHealth
from strata.sdk.record.gpu_cards import handle_of, present_count, text, visible_cards

log = logging.getLogger(__name__)

THROTTLE_REASONS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "application_clocks",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clocks",
}
ALL_LINKS = 0xFFFFFFFF
MAX_LINKS = 18
MAX_XIDS = 64
"""Xid events that one reading takes."""

KIB = 1024
_FIELD_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of the union that holds a field's value, by its type."""

_MEMORY_TEMPERATURE = (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0)
_BYTE_COUNTERS = {
    "nvlink_tx_bytes_per_s": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    "nvlink_rx_bytes_per_s": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
}
"""NVML field and scope of the counter, in KiB, that each throughput follows from."""

_PCIE_DIRECTIONS = {
    "pcie_tx_bytes_per_s": pynvml.NVML_PCIE_UTIL_TX_BYTES,
    "pcie_rx_bytes_per_s": pynvml.NVML_PCIE_UTIL_RX_BYTES,
}
_LINK_ERRORS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
)


class GpuProbe:
    """Reads the health of some GPUs; of all that this process may use, unless they are named."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        names = visible_cards() if names is None else names
        self._cards = [_Card(name) for name in names] if present_count() else []
        self._cards = [card for card in self._cards if card.handle is not None]
        self._xids = XidEvents([card.handle for card in self._cards])

    def read(self, pcie_throughput: bool = True) -> list[GpuHealth]:
        """The health of each GPU; its PCIe throughput takes 40 ms for each."""
        self._xids.take()
        return [
            card.read(*self._xids.of(number), pcie_throughput)
            for number, card in enumerate(self._cards)
        ]


class _Card:
    """One GPU, and the counters of its reading before."""

    def __init__(self, name: str) -> None:
        self.handle = _asked(handle_of, name)
        self._index = _asked(pynvml.nvmlDeviceGetIndex, self.handle)
        self._name = text(_asked(pynvml.nvmlDeviceGetName, self.handle) or "")
        self._uuid = text(_asked(pynvml.nvmlDeviceGetUUID, self.handle) or "")
        self._counted: dict[str, tuple[int, int]] = {}

    def read(
        self, xid_errors: int | None, last_xid: int | None, pcie_throughput: bool
    ) -> GpuHealth:
        handle = self.handle
        memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
        use = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
        fields = self._fields()
        return GpuHealth(
            index=self._index or 0,
            uuid=self._uuid,
            name=self._name,
            lost=self._is_lost(),
            utilization_percent=None if use is None else float(use.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_celsius=_float(
                _asked(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
            memory_temperature_celsius=_float(fields.get(_MEMORY_TEMPERATURE) or None),
            power_watts=_thousandth(_asked(pynvml.nvmlDeviceGetPowerUsage, handle)),
            power_limit_watts=_thousandth(_asked(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            sm_clock_mhz=_asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            throttle_reasons=throttle_reasons(handle),
            ecc_corrected=self._ecc(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._ecc(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            xid_errors=xid_errors,
            last_xid=last_xid,
            pcie_replays=_asked(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
            nvlink_errors=self._link_errors(),
            **(self._pcie_throughput() if pcie_throughput else {}),
            **self._link_throughput(fields),
        )

    def _is_lost(self) -> bool:
        """Whether the GPU does not answer, or the driver does not list it any more."""
        try:
            pynvml.nvmlDeviceGetUUID(self.handle)
            if self._uuid:
                handle_of(self._uuid)
        except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound):
            return True
        except pynvml.NVMLError as error:
            log.debug("GPU %s: %s", self._index, error)
        return False

    def _ecc(self, kind: int) -> int | None:
        counter = pynvml.NVML_VOLATILE_ECC
        errors = _asked(pynvml.nvmlDeviceGetTotalEccErrors, self.handle, kind, counter)
        return None if errors is None else int(errors)

    def _fields(self) -> dict[tuple[int, int], int | float]:
        """The fields of the tables above that the driver reports, by field and scope."""
        wanted = [_MEMORY_TEMPERATURE]
        wanted += _BYTE_COUNTERS.values()
        read = _asked(pynvml.nvmlDeviceGetFieldValues, self.handle, wanted)
        return {
            name: getattr(each.value, _FIELD_VALUES[each.valueType])
            for name, each in zip(wanted, read or (), strict=False)
            if each.nvmlReturn == pynvml.NVML_SUCCESS and each.valueType < len(_FIELD_VALUES)
        }

    def _pcie_throughput(self) -> dict[str, float | None]:
        """Bytes per second, measured by the driver."""
        found: dict[str, float | None] = {}
        for name, direction in _PCIE_DIRECTIONS.items():
            kib = _asked(pynvml.nvmlDeviceGetPcieThroughput, self.handle, direction)
            found[name] = None if kib is None else float(kib * KIB)
        return found

    def _link_throughput(
        self, fields: dict[tuple[int, int], int | float]
    ) -> dict[str, float | None]:
        """Bytes per second since the reading before."""
        found: dict[str, float | None] = {}
        now_ns = time.monotonic_ns()
        for name, field in _BYTE_COUNTERS.items():
            count = fields.get(field)
            if count is None:
                continue
            before = self._counted.get(name)
            self._counted[name] = (now_ns, int(count))
            if before is not None and count >= before[1] and now_ns > before[0]:
                found[name] = (count - before[1]) * KIB * 1e9 / (now_ns - before[0])
        return found

    def _link_errors(self) -> int | None:
        """Errors on all NVLinks that are up; None without such links."""
        errors: int | None = None
        for link in range(MAX_LINKS):
            state = _asked(pynvml.nvmlDeviceGetNvLinkState, self.handle, link)
            if state is None:
                break
            if state != pynvml.NVML_FEATURE_ENABLED:
                continue
            for kind in _LINK_ERRORS:
                counted = _asked(pynvml.nvmlDeviceGetNvLinkErrorCounter, self.handle, link, kind)
                errors = errors if counted is None else (errors or 0) + int(counted)
        return errors


class XidEvents:
    """Counts the Xid errors of GPUs since now; they are unknown where the driver refuses that."""

    def __init__(self, handles: list[Any]) -> None:
        self._events = _asked(pynvml.nvmlEventSetCreate) if handles else None
        self._counts: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._numbers = {_address(handle): number for number, handle in enumerate(handles)}
        if self._events is None:
            return
        for number, handle in enumerate(handles):
            try:
                kind = pynvml.nvmlEventTypeXidCriticalError
                pynvml.nvmlDeviceRegisterEvents(handle, kind, self._events)
                self._counts[number] = 0
            except pynvml.NVMLError as error:
                log.debug("the driver reports no Xid errors of GPU %d: %s", number, error)

    def take(self) -> None:
        """Count the events that wait; a fatal one is not replaced by one that is not fatal."""
        fatal: set[int] = set()
        for _ in range(MAX_XIDS if self._counts else 0):
            event = _asked(pynvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            number = self._numbers.get(_address(event.device))
            if number in self._counts and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._counts[number] += 1
                xid = int(event.eventData)
                if xid in FATAL_XIDS:
                    fatal.add(number)
                if xid in FATAL_XIDS or number not in fatal:
                    self._last[number] = xid

    def of(self, number: int) -> tuple[int | None, int | None]:
        """The number of Xid errors of a GPU, and the last one."""
        return self._counts.get(number), self._last.get(number)


def throttle_reasons(handle: Any) -> str | None:
    """Why the clocks of a GPU are reduced, separated by commas."""
    mask = _asked(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if mask is None:
        mask = _asked(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if mask is None:
        return None
    return ",".join(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


def _address(handle: Any) -> int:
    """The number of a device behind NVML's pointer."""
    return int(cast(handle, c_void_p).value or 0)


def _asked(function: Callable[..., Any], *arguments: object) -> Any:
    """The answer of the driver; None if it has none."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        log.debug("%s: %s", getattr(function, "__name__", function), error)
        return None


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
