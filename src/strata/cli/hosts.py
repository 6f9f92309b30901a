"""List the hosts and their health; exclude or include a host."""

from typing import Annotated, Literal

import typer

from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import (
    Cell,
    Column,
    Look,
    ago,
    count,
    plain,
    print_json,
    print_list,
    size,
    state,
)
from strata.coordinator.rest.host_responses import HostResponse
from strata.core.hosts.host_health import GpuHealth, HostFigures

NOT_RECORDED = "–"


def status(host: HostResponse) -> Cell:
    """Whether a host is excluded or its agent is up; one without an agent has only workers."""
    if host.excluded:
        return state("excluded")
    return state("up" if host.agent.up else "lost") if host.agent else "no agent"


def slots(host: HostResponse) -> str:
    """Used and offered slots."""
    return f"{host.agent.slots_used}/{count(host.agent.slots)}" if host.agent else NOT_RECORDED


def figures(host: HostResponse) -> HostFigures:
    """The measured health; without figures if it was not measured."""
    return host.health or HostFigures()


def gpus(host: HostResponse) -> list[GpuHealth]:
    """The GPUs that were measured."""
    return list(host.health.gpus) if host.health else []


def load(host: HostResponse) -> str:
    """Load, and the number of CPU cores."""
    health = figures(host)
    if health.load_1m is None:
        return NOT_RECORDED
    return (
        f"{health.load_1m:.1f}/{health.cpu_count}" if health.cpu_count else f"{health.load_1m:.1f}"
    )


def pressure(host: HostResponse) -> str:
    """Share of the last minute short of CPU, memory and disk."""
    health = figures(host)
    parts = (
        health.cpu_pressure_percent,
        health.memory_pressure_percent,
        health.io_pressure_percent,
    )
    return " ".join(NOT_RECORDED if part is None else f"{part:.0f}%" for part in parts)


def free(size_bytes: int | None) -> str:
    """A size, if it was measured."""
    return NOT_RECORDED if size_bytes is None else size(size_bytes)


def number(value: int | None) -> str:
    """A count, if it was measured."""
    return NOT_RECORDED if value is None else count(value)


def gpu_state(host: HostResponse) -> str:
    """Number of GPUs, the highest temperature and the sum of power."""
    cards = gpus(host)
    if not cards:
        return NOT_RECORDED
    degrees = [card.temperature_celsius for card in cards if card.temperature_celsius is not None]
    watts = [card.power_watts for card in cards if card.power_watts is not None]
    hottest = f" {max(degrees):.0f}°C" if degrees else ""
    return f"{len(cards)}×{hottest}{f' {sum(watts):.0f} W' if watts else ''}"


def faults(host: HostResponse) -> str:
    """What is wrong with the hardware: lost GPUs, ECC and Xid errors, thermal throttling."""
    found = []
    for card in gpus(host):
        wrong = ["lost"] if card.lost else []
        wrong += [f"{card.ecc_uncorrected} uncorrected ECC"] if card.ecc_uncorrected else []
        wrong += [f"{card.xid_errors} Xid, last {card.last_xid}"] if card.xid_errors else []
        hot = {"hw_thermal", "sw_thermal"} & set((card.throttle_reasons or "").split(","))
        wrong += ["too hot"] if hot else []
        found += [f"GPU {card.index}: {', '.join(wrong)}"] if wrong else []
    return "; ".join(found)


def note(host: HostResponse) -> str:
    """Why a host is excluded or its agent was lost, or which GPUs have faults."""
    agent = host.agent
    lost = agent.reason if agent is not None and not agent.up else ""
    excluded = f"excluded, {host.excluded}" if host.excluded else ""
    parts = [part for part in (excluded, lost, faults(host)) if part]
    return f"{host.id}: {'; '.join(parts)}" if parts else ""


LOOK = Look(
    "hosts",
    HostResponse,
    [
        Column("host", lambda host, _: host.id, shrinks=True),
        Column("status", lambda host, _: status(host)),
        Column("slots", lambda host, _: slots(host), "right"),
        Column("load", lambda host, _: load(host), "right"),
        Column("pressure cpu mem io", lambda host, _: pressure(host), "right", from_width=100),
        Column("memory free", lambda h, _: free(figures(h).memory_available_bytes), "right"),
        Column("disk free", lambda h, _: free(figures(h).disk_free_bytes), "right"),
        Column("OOM", lambda h, _: number(figures(h).oom_kills), "right", from_width=90),
        Column("NIC errors", lambda h, _: number(figures(h).nic_errors), "right", from_width=110),
        Column("GPUs", lambda host, _: gpu_state(host), "right"),
        Column("measured", lambda host, now_ms: ago(host.measured_at, now_ms)),
        Column("name", lambda host, _: host.hostname, shrinks=True, from_width=120),
    ],
    empty="no host has an agent or was measured",
    next_command="strata agent --coordinator HOST:50051",
    note=note,
)


Action = Annotated[
    Literal["list", "exclude", "include"],
    typer.Argument(help="Action; `exclude` and `include` need a host.", show_default=False),
]
Host = Annotated[
    str, typer.Argument(metavar="[HOST]", help="Id of the host, as listed.", show_default=False)
]
Reason = Annotated[str, typer.Option(help="Why the host is excluded or included.")]


def hosts(
    action: Action = "list",
    host: Host = "",
    reason: Reason = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the hosts and their health; exclude or include a host.

    No worker is placed on an excluded host; those that run there go on.
    """
    if action == "list":
        if host or reason:
            raise typer.BadParameter("`strata hosts list` takes no host and no reason")
        print_list(reach(url), LOOK, limit, as_json)
        return
    if not host:
        raise typer.BadParameter(f"name the host: strata hosts {action} HOST")
    if action == "exclude" and not reason:
        raise typer.BadParameter("give the reason, which `strata hosts` shows: --reason TEXT")
    api = reach(url)
    answer = api.post(f"/api/hosts/{host}/{action}", {"reason": reason})
    if as_json:
        print_json([answer])
    else:
        typer.echo(f"{plain(host)} is {action}d")
