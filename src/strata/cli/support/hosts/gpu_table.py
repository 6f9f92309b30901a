"""The GPUs of hosts as a table: which are excluded, and how healthy each is."""

import msgspec
from msgspec import Struct

from strata.cli.support.rest_client import Api
from strata.cli.support.tables import (
    STATES,
    Cell,
    Column,
    console,
    print_empty,
    print_json,
    print_notes,
    size,
    state,
    table,
)
from strata.coordinator.rest.host_responses import HostResponse
from strata.core.hosts.host_health import GpuHealth

NOT_RECORDED = "–"


class GpuRow(Struct, frozen=True, kw_only=True):
    """A GPU; `health` is None if it is not measured."""

    host: str
    index: int
    uuid: str | None
    excluded: str | None
    health: GpuHealth | None


def gpus(host: HostResponse) -> list[GpuHealth]:
    """The GPUs that were measured."""
    return list(host.health.gpus) if host.health else []


def faults_of(card: GpuHealth) -> str:
    """What is wrong with a GPU."""
    wrong = ["lost"] if card.lost else []
    wrong += [f"{card.ecc_uncorrected} uncorrected ECC"] if card.ecc_uncorrected else []
    wrong += [f"{card.xid_errors} Xid, last {card.last_xid}"] if card.xid_errors else []
    hot = {"hw_thermal", "sw_thermal"} & set((card.throttle_reasons or "").split(","))
    return ", ".join([*wrong, *(["too hot"] if hot else [])])


def rows_of(host: HostResponse) -> list[GpuRow]:
    """The GPUs of a host with their newest health."""
    measured = {gpu.index: gpu for gpu in gpus(host)} | {gpu.uuid: gpu for gpu in gpus(host)}
    return [
        GpuRow(
            host=host.id,
            index=gpu.index,
            uuid=gpu.uuid,
            excluded=gpu.excluded,
            health=measured.get(gpu.uuid or gpu.index),
        )
        for gpu in host.gpus
    ]


def status(row: GpuRow) -> Cell:
    """Whether a GPU is excluded, not measured, lost or up."""
    if row.excluded:
        return state("excluded")
    if row.health is None:
        return "not measured"
    return state("lost" if row.health.lost else "up")


def figure(row: GpuRow, name: str, unit: str) -> str:
    """A figure of a GPU with its unit, if it was measured."""
    value = getattr(row.health, name, None)
    return NOT_RECORDED if value is None else f"{value:.0f}{unit}"


def memory(row: GpuRow) -> str:
    """The used memory, if it was measured."""
    used = row.health.memory_used_bytes if row.health is not None else None
    return NOT_RECORDED if used is None else size(used)


COLUMNS: list[Column[GpuRow]] = [
    Column("host", lambda row, _: row.host, shrinks=True),
    Column("GPU", lambda row, _: str(row.index), "right"),
    Column("status", lambda row, _: status(row)),
    Column("use", lambda row, _: figure(row, "utilization_percent", "%"), "right"),
    Column("memory", lambda row, _: memory(row), "right"),
    Column("temperature", lambda row, _: figure(row, "temperature_celsius", "°C"), "right"),
    Column("power", lambda row, _: figure(row, "power_watts", " W"), "right"),
    Column("faults", lambda row, _: faults_of(row.health) if row.health else "", shrinks=True),
    Column("name", lambda row, _: row.health.name if row.health else "", from_width=110),
    Column("UUID", lambda row, _: row.uuid or NOT_RECORDED, from_width=140),
]


def print_gpus(api: Api, host: str, limit: int, as_json: bool) -> None:
    """Print the GPUs of all hosts, or of one."""
    found = api.listing("/api/hosts", limit)
    hosts = [api.decode(item, HostResponse) for item in found.items]
    rows = [row for each in hosts if host in ("", each.id) for row in rows_of(each)]
    if as_json:
        print_json([msgspec.json.encode(row) for row in rows])
    elif not rows:
        where = f"host {host} has" if host else "the hosts have"
        print_empty(f"{where} no GPUs", "strata hosts")
    else:
        out = console()
        out.print(table(COLUMNS, rows, found.now_ms, out.width))
        notes = [
            (STATES["excluded"], f"{row.host} GPU {row.index}: excluded, {row.excluded}")
            for row in rows
            if row.excluded
        ]
        print_notes(out, notes)
