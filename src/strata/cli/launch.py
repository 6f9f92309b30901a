"""Start agents on the hosts of a Ray cluster and keep them running."""

import signal
import threading
from typing import Annotated

import typer

from strata.cli.support.hosts.ray_hosts import PREFIX, Gpus, RayAddress, losing
from strata.cli.support.options import CoordinatorAddress, Token, Url, coordinator_settings
from strata.cli.support.rest_client import reach
from strata.logsetup import configure

Hosts = Annotated[int, typer.Option(min=1, help="Number of hosts to start an agent on.")]


def launch(
    hosts: Hosts,
    slots: Annotated[int, typer.Option(min=1, help="Workers per host.")] = 1,
    gpus: Gpus = 0,
    coordinator: CoordinatorAddress = None,
    url: Url = None,
    token: Token = None,
    name: Annotated[str, typer.Option(help="Prefix of the agents' names.")] = PREFIX,
    ray_address: RayAddress = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder for the agents' state, on each host.")
    ] = None,
) -> None:
    """Start agents on the hosts of a Ray cluster and keep them running until SIGTERM or Ctrl-C.

    The workers are stopped with the agents.
    """
    from strata.launch.ray_agents import HostRequest, connected, ray_agents

    settings = coordinator_settings("launch", coordinator, token, data_dir)
    configure(settings, "launch")
    lost = losing(reach(url))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with connected(ray_address), ray_agents(settings, HostRequest(hosts, slots, gpus), name, lost):
        stopping.wait()
