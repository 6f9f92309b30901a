"""Options and connections for verbs that use Ray."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from strata.cli.support.rest_client import Api
from strata.config import Settings
from strata.errors import StrataError

if TYPE_CHECKING:
    from strata.launch.local_cluster import Local

log = logging.getLogger(__name__)

PREFIX = "ray"

Gpus = Annotated[int, typer.Option(min=0, help="With Ray: GPUs to reserve per host.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Address of the Ray cluster; default: the one that Ray finds.")
]


@contextmanager
def on_ray(settings: Settings, address: str | None) -> Iterator[Settings]:
    """A connection to Ray, and the settings of a coordinator that its nodes can reach."""
    from strata.launch.ray_agents import connected, reachable

    with connected(address):
        yield reachable(settings)


@contextmanager
def ray_hosts(
    settings: Settings, cluster: "Local", api: Api, workers: int, hosts: int, gpus: int
) -> Iterator[None]:
    """Agents on Ray nodes, with slots for a task's workers; the coordinator is in this process."""
    from strata.launch.ray_agents import HostRequest, ray_agents

    agent_settings = msgspec.structs.replace(
        settings, coordinator_addr=cluster.address, token=cluster.token
    )
    if not settings.tls_cert:  # settings of a client are for another coordinator
        agent_settings = msgspec.structs.replace(
            agent_settings, tls_ca="", tls_client_cert="", tls_client_key=""
        )
    wanted = HostRequest(hosts, math.ceil(workers / hosts), gpus)
    with ray_agents(agent_settings, wanted, PREFIX, losing(api)):
        yield


def losing(api: Api) -> Callable[[str, str], None]:
    """A callback that reports a lost host; the coordinator refuses if the agent is connected."""

    def lost(agent: str, reason: str) -> None:
        try:
            api.post(f"/api/agents/{agent}/lost", {"reason": reason})
        except StrataError as error:
            log.info("agent %s was not declared lost: %s", agent, error)

    return lost
