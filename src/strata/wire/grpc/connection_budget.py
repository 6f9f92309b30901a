"""Limits of all connections of a server together, in number and in bytes.

A connection is unauthenticated until a call on it was allowed to use a method that is not public; a
client without the token stays unauthenticated. Unauthenticated connections have separate, much
lower limits, so that they cannot use up what workers need:

- Number. At the limit a new connection closes an older one: the oldest of the network with the most
  connections. A worker that connects is therefore accepted, and one host cannot displace others.
- Bytes. The connections that hold the most are closed until a quarter of the limit is free.

Authenticated connections are closed only if all connections together hold more than
`max_total_bytes`: again those that hold the most, whose peers do not read. If all connections are
authenticated and their number is at the limit, new ones are refused.

Bytes are what a peer can make grow: incomplete requests, header blocks, open calls, unsent data.
The objects of an idle connection, about 4 KB without TLS, are limited by the number of connections.
Every connection is an open file, so `raise_limit` raises the limit of open files of this process.
"""

import logging
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Protocol

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of all connections together, and of one unauthenticated connection (`_each`)."""

    max_connections: int = 10_000
    max_total_bytes: int = 1 << 30
    max_unauthenticated: int = 5_000
    max_unauthenticated_bytes: int = 32 << 20
    max_unauthenticated_bytes_each: int = 64 << 10
    max_unauthenticated_calls_each: int = 16
    max_public_message_bytes: int = 4 << 10


class Member(Protocol):
    """What the budget needs of a connection."""

    network: str
    authenticated: bool
    held_bytes: int

    def measure(self) -> int:
        """Bytes that the connection holds now."""

    def evict(self, reason: str) -> None:
        """Close the connection at once."""


class ConnectionBudget:
    """Counts connections and their bytes, and closes connections above a limit."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.bounds = bounds
        self.members: set[Member] = set()
        self.total_bytes = 0
        self.unauthenticated_count = 0
        self.unauthenticated_bytes = 0
        self._networks: dict[str, dict[Member, None]] = {}
        self._clock = clock
        self._log_at_s = float("-inf")
        self._unlogged = 0

    def admit(self, member: Member) -> bool:
        """Add a connection, if necessary by closing an unauthenticated one; False if full."""
        full = len(self.members) >= self.bounds.max_connections
        crowded = self.unauthenticated_count >= self.bounds.max_unauthenticated
        if full and not self.unauthenticated_count:
            self._log(f"refused a connection: {len(self.members)} authenticated ones are open")
            return False
        if full or crowded:
            most = max(self._networks.values(), key=len)
            self._evict(next(iter(most)), "too many unauthenticated connections")
        self.members.add(member)
        self.unauthenticated_count += 1
        self._networks.setdefault(member.network, {})[member] = None
        return True

    def authenticate(self, member: Member) -> None:
        """Count a connection as authenticated from now on."""
        member.authenticated = True
        self._leave_network(member)

    def dismiss(self, member: Member) -> None:
        """Remove a closed connection; removing it twice is harmless."""
        if member in self.members:
            self.members.discard(member)
            self._add(member, -member.held_bytes)
            if not member.authenticated:
                self._leave_network(member)

    def settle(self, member: Member, held_bytes: int) -> None:
        """Update the bytes of a connection; above a limit close those that hold the most."""
        if member not in self.members:
            return
        self._add(member, held_bytes - member.held_bytes)
        bounds = self.bounds
        if self.unauthenticated_bytes > bounds.max_unauthenticated_bytes:
            strangers = [member for known in self._networks.values() for member in known]
            limit = bounds.max_unauthenticated_bytes
            self._relieve(strangers, lambda: self.unauthenticated_bytes <= limit * 3 // 4)
        if self.total_bytes > bounds.max_total_bytes:
            limit = bounds.max_total_bytes
            self._relieve(self.members, lambda: self.total_bytes <= limit * 7 // 8)

    def _relieve(self, members: Iterable[Member], enough: Callable[[], bool]) -> None:
        for member in members:
            self._add(member, member.measure() - member.held_bytes)
        for member in sorted(members, key=lambda member: member.held_bytes, reverse=True):
            if enough():
                return
            self._evict(member, f"it held {member.held_bytes} bytes, the most of all")

    def _add(self, member: Member, change_bytes: int) -> None:
        member.held_bytes += change_bytes
        self.total_bytes += change_bytes
        if not member.authenticated:
            self.unauthenticated_bytes += change_bytes

    def _leave_network(self, member: Member) -> None:
        self.unauthenticated_count -= 1
        if member.authenticated:
            self.unauthenticated_bytes -= member.held_bytes
        known = self._networks[member.network]
        del known[member]
        if not known:
            del self._networks[member.network]

    def _evict(self, member: Member, reason: str) -> None:
        kind = "an authenticated" if member.authenticated else "an unauthenticated"
        self._log(f"closed {kind} connection from {member.network}: {reason}")
        self.dismiss(member)
        member.evict(reason)

    def _log(self, text: str) -> None:
        """Log at most once per `LOG_INTERVAL_S`, so that peers cannot fill the log."""
        now_s = self._clock()
        if now_s - self._log_at_s < LOG_INTERVAL_S:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more since the last message)" if self._unlogged else ""
        logger.warning("%s%s", text, more)
        self._log_at_s, self._unlogged = now_s, 0


def network_of(host: str) -> str:
    """The network of an address: itself, or for IPv6 its /64, which one host may own."""
    if ":" not in host:
        return host
    return str(IPv6Address(int(IPv6Address(host)) >> 64 << 64))


def raise_limit(wanted: int) -> int:
    """Raise the limit of open files to `wanted` if allowed; returns the resulting limit.

    It is not raised further, because child processes inherit it, and some programs use time or
    memory in proportion to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(allowed, soft)
