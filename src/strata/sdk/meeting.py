"""Where the other members of a generation meet this worker, should it have rank 0.

A listening socket, opened when the worker joins and told to the coordinator whenever a generation
is entered. No connection is accepted on it until there is something to exchange.
"""

import socket

from strata.sdk.channel import Address

BACKLOG = 1_024


class MeetingPlace:
    """A listening socket on the interface that leads to the coordinator."""

    def __init__(self, coordinator: Address) -> None:
        host = own_host(coordinator.host, coordinator.port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self.address = f"{host}:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """Close the socket: no more connections are accepted."""
        self.listener.close()


def own_host(towards: str, port: int) -> str:
    """This host's address on the way to another; no packet is sent to find it."""
    family, kind, protocol, _, place = socket.getaddrinfo(towards, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        host: str = probe.getsockname()[0]
        return host
