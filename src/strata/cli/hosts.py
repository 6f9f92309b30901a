"""List the hosts and their health, or their GPUs; exclude or include a host or a GPU."""

from typing import Annotated, Literal
from urllib.parse import quote

import typer

from strata.cli.support.hosts.gpu_table import faults_of, gpus, print_gpus
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
from strata.cli.support.texts.known_ids import host_ids
from strata.coordinator.rest.host_responses import HostResponse
from strata.core.hosts.host_health import HostFigures

NOT_RECORDED = "–"


def status(host: HostResponse) -> Cell:
    """Whether a host is excluded or its agent is up; one without an agent has only workers."""
    if host.excluded:
        return state("excluded")
    return state("up" if host.agent.up else "lost") if host.agent else "no agent"


def slots(host: HostResponse) -> str:
    """Used and usable slots."""
    return f"{host.agent.slots_used}/{count(host.usable_slots)}" if host.agent else NOT_RECORDED


def figures(host: HostResponse) -> HostFigures:
    """The measured health; without figures if it was not measured."""
    return host.health or HostFigures()


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
    wrong = {card.index: faults_of(card) for card in gpus(host)}
    return "; ".join(f"GPU {index}: {text}" for index, text in wrong.items() if text)


def excluded_gpus(host: HostResponse) -> list[str]:
    """Which GPUs are excluded, and why."""
    return [f"GPU {gpu.index} is excluded, {gpu.excluded}" for gpu in host.gpus if gpu.excluded]


def note(host: HostResponse) -> str:
    """Why a host is excluded or its agent was lost, or which GPUs have faults."""
    agent = host.agent
    lost = agent.reason if agent is not None and not agent.up else ""
    excluded = f"excluded, {host.excluded}" if host.excluded else ""
    parts = [part for part in (excluded, *excluded_gpus(host), lost, faults(host)) if part]
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
    Literal["list", "gpus", "exclude", "include"],
    typer.Argument(help="Action; `exclude` and `include` need a host.", show_default=False),
]
Host = Annotated[
    str,
    typer.Argument(
        metavar="[HOST]",
        help="Id of the host, as listed.",
        show_default=False,
        autocompletion=host_ids,
    ),
]
Gpu = Annotated[
    str, typer.Option(help="Index or UUID of the GPU; default: the whole host.", show_default=False)
]
Reason = Annotated[str, typer.Option(help="Why the host or GPU is excluded or included.")]


def hosts(
    action: Action = "list",
    host: Host = "",
    gpu: Gpu = "",
    reason: Reason = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the hosts and their health, or their GPUs; exclude or include a host or a GPU.

    No worker is placed on an excluded host or gets an excluded GPU; those that run there go on.
    """
    if action in ("list", "gpus"):
        if (host and action == "list") or gpu or reason:
            raise typer.BadParameter(f"`strata hosts {action}` takes no host, GPU or reason")
        if action == "list":
            print_list(reach(url), LOOK, limit, as_json)
        else:
            print_gpus(reach(url), host, limit, as_json)
        return
    if not host:
        raise typer.BadParameter(f"name the host: strata hosts {action} HOST")
    if action == "exclude" and not reason:
        raise typer.BadParameter("give the reason, which `strata hosts` shows: --reason TEXT")
    api = reach(url)
    place = f"/gpus/{quote(gpu, safe='')}" if gpu else ""
    answer = api.post(f"/api/hosts/{quote(host, safe='')}{place}/{action}", {"reason": reason})
    if as_json:
        print_json([answer])
    else:
        named = f"GPU {plain(gpu)} of {plain(host)}" if gpu else plain(host)
        typer.echo(f"{named} is {action}d")
