"""The bounds of all connections of a server together: how many there are, and what they hold.

A connection is unauthenticated until a call on it was allowed to use a method that is not public;
a client without the token stays so for ever. Unauthenticated connections have bounds of their own,
far below those of the others, so that they cannot use up what workers need:

- In number. A new connection at the bound closes an older one: the oldest of the network that has
  the most. A worker that connects is therefore let in, and one host cannot push out another's.
- In bytes. Those that hold the most are closed until a quarter of the bound is free.

Authenticated connections are closed only when everything together is above `max_total_bytes`:
again those that hold the most, which are the ones whose peers do not read. When all places are
taken by authenticated connections, new ones are refused.

Bytes are what a peer can make grow: unfinished requests, header blocks, open calls, what waits to
be sent. The objects of an idle connection, about 4 KB without TLS, are bounded by the number of
connections.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Protocol

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the connections of a server may hold together, and one before it is authenticated."""

    max_connections: int = 10_000
    max_total_bytes: int = 1 << 30
    max_unauthenticated: int = 5_000
    max_unauthenticated_bytes: int = 32 << 20
    max_unauthenticated_bytes_each: int = 64 << 10
    max_unauthenticated_calls_each: int = 16
    max_public_message_bytes: int = 4 << 10


class Member(Protocol):
    """A connection, as its budget sees it."""

    network: str
    authenticated: bool
    held_bytes: int

    def measure(self) -> int:
        """Return the bytes that the connection holds now."""

    def evict(self, reason: str) -> None:
        """Close the connection at once, and leave the budget."""


class ConnectionBudget:
    """Counts connections and their bytes, and closes the right ones at a bound."""

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
        """Take a new connection in, if need be for an unauthenticated one; False if it is full."""
        full = len(self.members) >= self.bounds.max_connections
        crowded = self.unauthenticated_count >= self.bounds.max_unauthenticated
        if full and not self.unauthenticated_count:
            self._log(f"refused a connection: {len(self.members)} are authenticated and open")
            return False
        if full or crowded:
            most = max(self._networks.values(), key=len)
            self._evict(next(iter(most)), "too many connections have not authenticated")
        self.members.add(member)
        self.unauthenticated_count += 1
        self._networks.setdefault(member.network, {})[member] = None
        return True

    def authenticate(self, member: Member) -> None:
        """Count a connection among the authenticated from now on."""
        member.authenticated = True
        self._leave_network(member)

    def dismiss(self, member: Member) -> None:
        """Forget a connection that is over; it may have been forgotten before."""
        if member in self.members:
            self.members.discard(member)
            self._add(member, -member.held_bytes)
            if not member.authenticated:
                self._leave_network(member)

    def settle(self, member: Member, held_bytes: int) -> None:
        """Note what a connection holds, and close those that hold the most if it is too much."""
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
        """Log once in a while only: a peer must not be able to fill the log by connecting."""
        now_s = self._clock()
        if now_s - self._log_at_s < LOG_INTERVAL_S:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} like it since the last message)" if self._unlogged else ""
        logger.warning("%s%s", text, more)
        self._log_at_s, self._unlogged = now_s, 0


def network_of(host: str) -> str:
    """Whom an address belongs to: itself, or for IPv6 the /64 that one host can have for itself."""
    if ":" not in host:
        return host
    return str(IPv6Address(int(IPv6Address(host)) >> 64 << 64))
