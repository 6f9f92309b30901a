"""Have Ray place agents on several hosts and keep them there."""

import signal
import threading
from typing import Annotated, Literal

import typer

from strata.cli._api import reach
from strata.cli._options import Url
from strata.cli._ray import PREFIX, Gpus, RayAddress, losing
from strata.config import load_process
from strata.errors import SettingError
from strata.logsetup import configure

Engine = Annotated[Literal["ray"], typer.Option(help="What places and starts the agents.")]
Hosts = Annotated[int, typer.Option(min=1, help="Hosts to start an agent on.")]


def agents(
    hosts: Hosts,
    engine: Engine = "ray",
    slots: Annotated[int, typer.Option(min=1, help="Workers per host.")] = 1,
    gpus: Gpus = 0,
    coordinator: Annotated[
        str | None, typer.Option(help="gRPC address of the coordinator, such as HOST:50051.")
    ] = None,
    url: Url = None,
    token: Annotated[str | None, typer.Option(help="Bearer token of the coordinator.")] = None,
    name: Annotated[str, typer.Option(help="Prefix of the agents' names.")] = PREFIX,
    ray_address: RayAddress = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder for the agents' state, on each host.")
    ] = None,
) -> None:
    """Offer hosts of a Ray cluster until told to stop; SIGTERM or Ctrl-C ends the workers."""
    from strata.launch.ray import Wanted, connected, ray_agents

    settings = load_process({"coordinator_addr": coordinator, "token": token, "data_dir": data_dir})
    if not settings.coordinator_addr:
        raise SettingError("no coordinator is named", hint="strata agents --coordinator HOST:50051")
    configure(settings, "agents")
    lost = losing(reach(url))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with connected(ray_address), ray_agents(settings, Wanted(hosts, slots, gpus), name, lost):
        stopping.wait()
