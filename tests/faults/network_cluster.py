"""A cluster on hosts of its own: the coordinator on `head`, an agent with one slot on each other
host. Faults are planted into the network between them (`namespaces`)."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.harness import Agent, Api
from tests.coordinator.process import Process
from tests.faults.fault_cluster import SETTINGS, WORKERS, Cluster, Given, Watcher
from tests.faults.namespaces import Host, Network
from tests.faults.tcp_forwarder import Forwarder

TOKEN = "a-token-of-tests"
HEAD = "head"
PEER_TIMEOUT_S = 4


class RemoteCoordinator(Process):
    """`strata up` on a host; the tests reach its HTTP port, which listens on loopback there."""

    def __init__(self, host: Host, folder: Path, **settings: object) -> None:
        super().__init__(folder, grpc_host=host.address, token=TOKEN, **settings)
        self.host = host
        self.prefix = host.command([])
        self._http_port = 0
        self._forwarder = Forwarder()
        self._forwarder.connect = lambda: host.connect(self._http_port)

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    def start(self) -> None:
        super().start()
        self._http_port = int(self.http_url.rpartition(":")[2])
        self.http_url = f"http://127.0.0.1:{self._forwarder.port}"

    def close(self) -> None:
        self._forwarder.close()


class RemoteAgent(Agent):
    """`strata agent` on a host, with one slot and a folder of its own."""

    def __init__(self, host: Host, folder: Path, address: str, **variables: str) -> None:
        self.host = host
        folder.mkdir()
        super().__init__(folder, address, 1, host.name, TOKEN, **variables)

    def start(self) -> None:
        if self.command[0] != "ip":
            self.command = self.host.command(self.command)
        super().start()


class NetworkCluster(Cluster):
    """The coordinator and the agents, each on its host."""

    def __init__(self, folder: Path, given: Given) -> None:
        self.folder = folder
        self.settings = SETTINGS | given.settings
        self.variables = given.variables
        self.tool: Network = given.tool
        self.coordinator = RemoteCoordinator(self.tool[HEAD], folder, **self.settings)
        self.api = Api(self.coordinator)
        self.watcher = Watcher(self.coordinator)
        self.agents: list[RemoteAgent] = []

    def start(self) -> None:
        self.coordinator.start()
        for name, host in self.tool.hosts.items():
            if name != HEAD:
                folder, address = self.folder / name, self.coordinator.address
                self.agents.append(RemoteAgent(host, folder, address, **self.variables))

    def close(self) -> None:
        self.watcher.close()
        for each in self.agents:
            each.close()
        self.coordinator.kill()
        self.coordinator.close()


class FarCluster(Cluster):
    """A cluster on this host whose agent and workers reach the coordinator by a forwarder."""

    def start(self) -> None:
        self.coordinator.start()
        self.tool.connect = lambda: socket.create_connection(("127.0.0.1", self.coordinator.port))
        address = f"127.0.0.1:{self.tool.port}"
        self.agent = Agent(self.folder, address, WORKERS, **self.variables)


@contextmanager
def network(folder: Path) -> Iterator[Given]:
    """The coordinator and three agents, each on a host of its own."""
    variables = {"STRATA_TOKEN": TOKEN, "STRATA_PEER_TIMEOUT_S": str(PEER_TIMEOUT_S)}
    with Network(HEAD, "a", "b", "c") as hosts:
        yield Given(variables=variables, tool=hosts, cluster=NetworkCluster)


@contextmanager
def lossy_network(folder: Path) -> Iterator[Given]:
    """The same with the default timeouts: TCP needs many seconds where packets are lost."""
    with network(folder) as given:
        given.settings = {"heartbeat_timeout_s": 30.0, "connection_grace_s": 10.0}
        given.variables["STRATA_PEER_TIMEOUT_S"] = "30"
        yield given


@contextmanager
def far(folder: Path) -> Iterator[Given]:
    """The agent and the workers reach the coordinator by a forwarder, the tool."""
    with Forwarder() as forwarder:
        yield Given(tool=forwarder, cluster=FarCluster)
