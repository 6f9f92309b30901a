"""Hosts for tests of network faults: Linux network namespaces, connected by one bridge.

    with Network("head", "a", "b") as network:
        process = network["a"].start([...])     # runs on host a, sees only this network
        with network["a"].cut("head"):          # nothing that a sends arrives at head
            ...

Each host has a name of its own. The process of the tests stays outside: it reaches a port of a host
through `Host.connect`, past all faults. Packets are dropped at the bridge, by a classic BPF filter
of `tc`: all of a host, or a fraction at random, to every host or to one. The sender does not
notice, as on a real network; a drop in its own namespace would be seen by its TCP, which then gives
up after seconds instead of minutes. netem and iptables are not needed.

Addresses are of 198.18.0.0/15, which is reserved for tests of networks (RFC 2544). The end of
`Network` kills the processes on its hosts and removes everything it made, also after a failure;
what a killed run of tests left is removed by the next.

Needs root and the programs `ip` and `tc` (iproute2): `why_not` says what is missing.
"""

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from ipaddress import IPv4Address, ip_network
from itertools import count
from pathlib import Path

import psutil
import pytest

PREFIX = "strata-test"
SUBNET = ip_network("198.18.0.0/28")
MAX_HOSTS = 12
NAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
CLONE_NEWNET = 0x40000000
DEVICE, SWITCH = "net", "switch"
ENDED_S = CONNECT_S = 10.0

RANDOM = 0xFFFFF038  # SKF_AD_OFF + SKF_AD_RANDOM: the instruction loads a random number
DESTINATION = 30  # offset of the IPv4 destination in a frame
ETHER_TYPE, IPV4 = 12, 0x0800
DROP, PASS = 2, 0xFFFFFFFF  # TC_ACT_SHOT, TC_ACT_UNSPEC


class NotPossible(Exception):
    """A command that makes the network was refused."""


@cache
def why_not() -> str:
    """Why this machine cannot make namespaces; empty if it can."""
    if os.geteuid():
        return "network namespaces need root"
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install iproute2 util-linux)"
    try:
        with Network("a", "b") as network, network["a"].cut("b"), network["a"].loses(0.5):
            return ""
    except NotPossible as error:
        return str(error)


def require() -> None:
    """Skip the test where namespaces cannot be made, with the reason."""
    if reason := why_not():
        pytest.skip(f"no network namespaces: {reason}")


class Host:
    """A namespace with one network device."""

    def __init__(
        self, name: str, mark: str, address: IPv4Address, others: Mapping[str, "Host"]
    ) -> None:
        self.name, self.namespace, self._switch = name, f"{mark}-{name}", f"{mark}-{SWITCH}"
        self.ip = address
        self.address = str(address)
        self._others = others
        self._filters: list[str] = []

    def command(self, command: Sequence[object]) -> list[str]:
        """The command that runs another one on this host; both have the same pid."""
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return [*enter, "sh", "-c", NAMED, self.name, *map(str, command)]

    def connect(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """Connect to a port as a process on this host does."""

        def connected() -> socket.socket:
            _enter(self.namespace)
            return socket.create_connection((address, port), timeout=CONNECT_S)

        # A thread of its own: it stays in the namespace, as the socket does.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(connected).result()

    def start(self, command: Sequence[object], **options) -> subprocess.Popen:
        """Start a process on this host."""
        return subprocess.Popen(self.command(command), **options)

    def link(self, state: str) -> None:
        """Set the device `up` or `down`; down, it neither sends nor receives."""
        _run("ip", "-n", self.namespace, "link", "set", DEVICE, state)

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """The link is down meanwhile."""
        self.link("down")
        try:
            yield
        finally:
            self.link("up")

    @contextmanager
    def cut(self, *others: str) -> Iterator[None]:
        """What this host sends to the others, or to every host, is dropped meanwhile: a cut of one
        direction."""
        with self.loses(1.0, *others):
            yield

    @contextmanager
    def loses(self, fraction: float, *others: str) -> Iterator[None]:
        """A fraction of what this host sends is dropped meanwhile."""
        programs = [_program(fraction, self._others[name].ip) for name in others]
        programs = programs or [_program(fraction, None)]
        self._set_filters(self._filters + programs)
        try:
            yield
        finally:
            self._set_filters([each for each in self._filters if each not in programs])

    def _set_filters(self, programs: list[str]) -> None:
        self._filters = programs
        on = ("dev", f"to-{self.name}", "ingress")
        _run("tc", "-n", self._switch, "filter", "del", *on)
        for order, program in enumerate(programs, 1):
            rule = ("pref", order, "bpf", "da", "bytecode", program)
            _run("tc", "-n", self._switch, "filter", "add", *on, *rule)


class Network:
    """Hosts by name; a context that removes them."""

    made = count()

    def __init__(self, *names: str) -> None:
        assert len(names) <= MAX_HOSTS
        mark = f"{PREFIX}-{os.getpid()}-{next(self.made)}"
        free = SUBNET.hosts()
        self._switch = f"{mark}-{SWITCH}"
        self.hosts: dict[str, Host] = {}
        for name in names:
            self.hosts[name] = Host(name, mark, next(free), self.hosts)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> "Network":
        _remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @contextmanager
    def partition(self, some: Sequence[str], others: Sequence[str]) -> Iterator[None]:
        """Between the two groups nothing arrives, in both directions."""
        with ExitStack() as cuts:
            for senders, receivers in ((some, others), (others, some)):
                for each in senders:
                    cuts.enter_context(self[each].cut(*receivers))
            yield

    def remove(self) -> None:
        """Kill what runs on the hosts, and remove them."""
        for namespace in (*(host.namespace for host in self.hosts.values()), self._switch):
            _remove(namespace)

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for name, host in self.hosts.items():
            _run("ip", "netns", "add", host.namespace)
            here, there = ("-n", self._switch), ("-n", host.namespace)
            peer = ("type", "veth", "peer", "name", DEVICE, "netns", host.namespace)
            _run("ip", *here, "link", "add", "name", f"to-{name}", *peer)
            _run("ip", *here, "link", "set", f"to-{name}", "master", "bridge", "up")
            mask = SUBNET.prefixlen
            _run("ip", *there, "addr", "add", f"{host.address}/{mask}", "dev", DEVICE)
            for device in (DEVICE, "lo"):
                _run("ip", *there, "link", "set", device, "up")
            _run("tc", *here, "qdisc", "add", "dev", f"to-{name}", "clsact")


def _program(fraction: float, to: IPv4Address | None) -> str:
    """The BPF program, in the notation of tc, that drops a fraction of the packets to an address.

    Without an address it also drops ARP; to one address ARP passes.
    """
    rolls = [] if fraction >= 1 else [(0x20, 0, 0, RANDOM), (0x25, 1, 0, int(fraction * 2**32))]
    verdict = [*rolls, (0x06, 0, 0, DROP), (0x06, 0, 0, PASS)]
    if to is None:
        return _notation(verdict)
    to_pass = len(verdict) - 1
    match = [(0x28, 0, 0, ETHER_TYPE), (0x15, 0, to_pass + 2, IPV4)]
    match += [(0x20, 0, 0, DESTINATION), (0x15, 0, to_pass, int(to))]
    return _notation([*match, *verdict])


def _notation(program: list[tuple[int, int, int, int]]) -> str:
    lines = [" ".join(map(str, instruction)) for instruction in program]
    return ",".join([str(len(lines)), *lines])


def _run(*command: object) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    if done.returncode:
        raise NotPossible(f"{shlex.join(done.args)}: {done.stderr.strip()}")


def _enter(namespace: str) -> None:
    """Move this thread into a namespace."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")


def _remove(namespace: str) -> None:
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    for pid in map(int, listed.stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + ENDED_S
    while any(map(_runs, map(int, listed.stdout.split()))) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _remove_leftovers() -> None:
    """Remove the namespaces of test processes that have ended without doing it."""
    for file in Path("/run/netns").glob(f"{PREFIX}-*"):
        owner = int(file.name.split("-")[2])
        if not psutil.pid_exists(owner):
            _remove(file.name)
