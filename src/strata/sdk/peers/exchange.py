"""`run.average`: the members of a generation average arrays over TCP, without a framework.

All members send to rank 0, which sums in rank order and sends the result to all, so it is
bit-identical on all members. That is simple and fast for a small model (two workers exchange a
megabyte in about a millisecond); for large models use the collectives of PyTorch and JAX.

Each generation connects again: rank 0 listens at the address in its standing; the others connect
and send the generation's token and their names. If the coordinator uses TLS, so do these
connections (`peer_encryption`). A broken connection (a killed member, a host that acknowledges
nothing for `peer_timeout_s`) ends the exchange for all members quickly: the worker that notices
closes its connections, and all wait for the next generation. Rank 0 first tells the others which
member it lost. If all members are alive, no new generation forms, so the worker requests one. Then
`GenerationChanged` is raised: the step was not applied here. A worker that cannot connect to rank 0
for as long raises `Unavailable`.
"""

import logging
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hmac import compare_digest
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidArgument, Unavailable
from strata.sdk.peers.exchange_link import Link, connected, greeted
from strata.sdk.peers.exchange_log import ExchangeLog, Transport
from strata.sdk.peers.peer_encryption import PeerEncryption
from strata.sdk.peers.peer_sockets import prepared, unanswered_s
from strata.sdk.peers.value_tree import as_array, flatten, rebuild
from strata.sdk.session.channel import MeetingPlace

log = logging.getLogger(__name__)

Values = TypeVar("Values")
Packed: TypeAlias = NDArray[np.uint8]

HELLO = struct.Struct("<8sqq64s")  # magic, generation, rank, token
HEAD = struct.Struct("<qqdB")  # number of the exchange, bytes, weight, kind
AVERAGE, SHARE, EVERYONE, ENDED = range(4)
KINDS = ("an average", "a broadcast of rank 0", "a gather", "an end")
MAGIC = b"strata-2"
WAIT_SLICE_S = 0.05
HELLO_TIMEOUT_S = 2.0
FIND_LOST_S = 0.25
"""How long a worker looks for the lost member after a PyTorch collective failed."""

PEER_TIMEOUT_S = 30.0

NOBODY = -1


class LinkBroken(Exception):
    """A connection to a member broke, or the generation is over.

    `rank` is the member's rank, if known. `reported` says that rank 0 knows it.
    """

    def __init__(self, reason: str, rank: int | None = None, *, reported: bool = False) -> None:
        super().__init__(reason)
        self.rank, self.reported = rank, reported


class Exchange:
    """The connections of one generation. For the training thread.

    `host` is this worker's address, `name` its id, and `members` are all ids in rank order.
    `total_weight` is the sum of all weights in the last average. `over` says whether the generation
    has ended; it is checked while waiting. Until all members are connected, `stopped` ends the wait
    too; afterwards a stopping worker finishes its step, since the others wait for it.

    `sent_bytes` and `received_bytes` count the data, and `log` records it. `transport` is the
    transport of the members' values. `begun` counts the exchanges of the generation, the same on
    every member; `kind` is that of the newest.
    """

    def __init__(
        self,
        generation: int,
        rank: int,
        world_size: int,
        leader: str,
        token: str,
        meeting: MeetingPlace,
        over: Callable[[], bool],
        stopped: Callable[[], bool],
        *,
        name: str,
        peer_timeout_s: float = PEER_TIMEOUT_S,
        encryption: PeerEncryption | None = None,
    ) -> None:
        self._peer_timeout_s = peer_timeout_s
        self._encryption = encryption
        self.generation, self.rank = generation, rank
        self.host = meeting.address.rpartition(":")[0]
        self.members = [name]
        self.transport: Transport = "tcp"
        self.log: ExchangeLog | None = None
        self.sent_bytes = self.received_bytes = 0
        self._world_size = world_size
        self._over: Callable[[], bool] = lambda: over() or stopped()
        self._number = 0
        self.begun, self.kind = 0, ""
        self._awaited: Link | None = None
        self.total_weight = 0.0
        self._scratch: Packed = np.empty(0, np.uint8)
        self._links: list[Link] = []
        self._half_sent: set[Link] = set()
        hello = HELLO.pack(MAGIC, generation, rank, token.encode())
        try:
            if world_size > 1 and rank == 0:
                self._links = self._gather(meeting, hello)
            elif world_size > 1:
                self._links = [self._reach(leader, hello)]
        except OSError as error:
            raise LinkBroken(f"the members could not connect: {error}") from error
        try:
            self.members = self.everyone(name)
        except BaseException:
            self.close()
            raise
        self._over = over

    @property
    def linked(self) -> range:
        """The ranks to which this worker is connected."""
        return range(1, self._world_size) if self.rank == 0 else range(1)

    def opened(self, transport: Transport) -> None:
        """Record that the members are connected by a transport."""
        self.transport = transport
        if self.log is not None and self._world_size > 1:
            self.log.opened(self, transport)

    def begin(
        self,
        kind: str = "collective",
        sent_bytes: int = 0,
        received_bytes: int = 0,
        *,
        measured: bool = True,
    ) -> None:
        """Record the start of an exchange; the bytes are those of a collective, if known."""
        self.begun += 1
        self.kind = kind
        if self.log is not None and self._world_size > 1:
            self.log.began(self, measured)
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes

    def average(self, values: Values, weight: float) -> Values:
        """The weighted mean over all members of every array and number in `values`."""
        leaves = [as_array(value) for value in flatten(values)]
        mine = _packed(leaves)
        self._number += 1
        self.begin("average")
        mean = self._lead(mine, leaves, weight) if self.rank == 0 else self._follow(mine, weight)
        return cast(Values, rebuild(values, _unpacked(mean, leaves)))

    def share(self, text: str = "") -> str:
        """Broadcast the text of rank 0 to all members."""
        self._number += 1
        self.begin("broadcast")
        if self.rank:
            return bytes(self._receive(self._links[0], None, SHARE)[0]).decode()
        for link in self._links:
            self._send(link, np.frombuffer(text.encode(), np.uint8), 0.0, SHARE)
        return text

    def everyone(self, text: str) -> list[str]:
        """Gather the texts of all members on every member, in rank order."""
        self._number += 1
        self.begin("gather")
        texts = [text]
        if self.rank:
            own = np.frombuffer(text.encode(), np.uint8)
            self._send(self._links[0], own, 0.0, EVERYONE)
        else:
            received = (self._receive(link, None, EVERYONE) for link in self._links)
            texts += [bytes(data).decode() for data, _ in received]
        return msgspec.json.decode(self.share(msgspec.json.encode(texts).decode()), type=list[str])

    def missing(self) -> list[str]:
        """The members whose values rank 0 waits for now; other ranks wait for rank 0. May be called
        from another thread."""
        awaited = self._awaited
        if self.rank or awaited is None:
            return []
        try:
            later = self._links[self._links.index(awaited) :]
            arrived = select.select(later, [], [], 0)[0]
            return [self._name_of(self._rank_of(link)) for link in later if link not in arrived]
        except (OSError, ValueError):
            return []  # the exchange ended meanwhile

    @property
    def over(self) -> bool:
        """Whether the generation has ended."""
        return self._over()

    def find_lost(self, broken: LinkBroken) -> LinkBroken:
        """The same error with the rank of the lost member, if it can be found."""
        if broken.reported or (self.rank == 0 and broken.rank is not None):
            return broken
        rank = self._lost_rank(0.0 if self._over() else FIND_LOST_S)
        if rank == NOBODY:
            return LinkBroken(str(broken), reported=True)
        return LinkBroken(str(broken), broken.rank if rank is None else rank)

    def close(self, lost: int = NOBODY) -> None:
        """End the exchange. Rank 0 tells the others which member is lost, if one is."""
        for link in self._links:
            if self.rank == 0 and link not in self._half_sent:
                with suppress(OSError):
                    link.send(HEAD.pack(lost, 0, 0.0, ENDED))
            link.close()
        self._links = []

    def _lost_rank(self, within_s: float) -> int | None:
        """The rank whose connection is closed, or that rank 0 lost; None if all are open."""
        deadline_s = time.monotonic() + within_s
        while self._links:
            for link in select.select(self._links, [], [], WAIT_SLICE_S if within_s else 0)[0]:
                try:
                    head = link.peek(HEAD.size)
                except BlockingIOError:
                    continue
                except OSError:
                    head = b""
                if not head:
                    return self._rank_of(link)
                if len(head) == HEAD.size and HEAD.unpack(head)[3] == ENDED:
                    return int(HEAD.unpack(head)[0])
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(WAIT_SLICE_S / 10)
        return None

    def _rank_of(self, link: Link) -> int:
        return self._links.index(link) + 1 if self.rank == 0 else 0

    def _name_of(self, rank: int) -> str:
        return self.members[rank] if rank < len(self.members) else f"rank {rank}"

    def _broken(self, link: Link, reason: str) -> LinkBroken:
        rank = self._rank_of(link)
        return LinkBroken(f"the connection to {self._name_of(rank)} broke: {reason}", rank)

    def _lead(self, mine: Packed, leaves: Sequence[NDArray[Any]], weight: float) -> Packed:
        """Sum the values of all members in rank order, and send the mean to all."""
        total = weight
        sums = [_weighted(leaf, weight) for leaf in leaves]
        for link in self._links:
            theirs, their_weight = self._receive(link, mine.size)
            total += their_weight
            for at, leaf in enumerate(_unpacked(theirs, leaves)):
                sums[at] += _weighted(leaf, their_weight)
        if not total > 0:
            raise InvalidArgument(
                "the weights of run.average sum to 0", hint="pass positive weights"
            )
        mean = _packed(
            [(s / total).astype(leaf.dtype) for s, leaf in zip(sums, leaves, strict=True)]
        )
        for link in self._links:
            self._send(link, mean, total)
        self.total_weight = total
        return mean

    def _follow(self, mine: Packed, weight: float) -> Packed:
        (link,) = self._links
        self._send(link, mine, weight)
        mean, self.total_weight = self._receive(link, mine.size)
        return mean

    def _send(self, link: Link, data: Packed, weight: float, kind: int = AVERAGE) -> None:
        head = HEAD.pack(self._number, data.size, weight, kind)
        began_s = time.monotonic()
        self._half_sent.add(link)
        for part in (memoryview(head), data.data):
            while part:
                try:
                    # A blocking send would not notice the end of the generation.
                    part = part[link.send(part) :]
                except BlockingIOError:
                    self._wait(link, unsent=part.nbytes, since_s=began_s)
                except OSError as error:
                    raise self._broken(link, str(error)) from error
        self._half_sent.discard(link)
        self.sent_bytes += HEAD.size + data.size
        if self.log is not None:
            self.log.taken(self._name_of(self._rank_of(link)), time.monotonic() - began_s)

    def _receive(self, link: Link, size: int | None, kind: int = AVERAGE) -> tuple[Packed, float]:
        head = bytearray(HEAD.size)
        self._awaited = link
        self._fill(link, memoryview(head))
        self._awaited = None
        number, theirs, weight, their_kind = HEAD.unpack(head)
        if their_kind == ENDED:
            raise self._ended(int(number))
        size = theirs if size is None else size
        if (number, theirs, their_kind) != (self._number, size, kind):
            raise InvalidArgument(
                f"the workers called different collectives: exchange {number} of rank "
                f"{self._rank_of(link)} is {KINDS[their_kind % len(KINDS)]} of {theirs} bytes, and "
                f"exchange {self._number} of this worker is {KINDS[kind]} of {size} bytes",
                hint="make the same calls in the same order on every worker; decide what may "
                "differ, such as when to leave a loop, with run.agree(value)",
            )
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        data = self._scratch[:size]
        self._fill(link, data.data)
        self.received_bytes += HEAD.size + size
        return data, weight

    def _ended(self, lost: int) -> LinkBroken:
        """The error for an exchange that rank 0 has ended."""
        leader = self._name_of(0)
        if lost == NOBODY:
            return LinkBroken(f"{leader} ended the exchange", reported=True)
        reason = f"{leader} lost its connection to {self._name_of(lost)}"
        return LinkBroken(reason, lost, reported=True)

    def _fill(self, link: Link, part: memoryview) -> None:
        while part:
            try:
                # The bytes of an encrypted message may have left the socket already.
                count = link.receive_into(part)
            except BlockingIOError:
                self._wait(link)
                continue
            except OSError as error:
                raise self._broken(link, str(error)) from error
            if not count:
                raise self._broken(link, "the other side closed it")
            part = part[count:]

    def _wait(self, link: Link | socket.socket, *, unsent: int = 0, since_s: float = 0.0) -> None:
        """Wait until the socket is ready; raises if the generation ends."""
        reads, writes = ([], [link]) if unsent else ([link], [])
        while not any(select.select(reads, writes, [], WAIT_SLICE_S)):
            self._require_present()
            if not isinstance(link, Link):
                continue
            if (silent_s := unanswered_s(link.socket)) > self._peer_timeout_s:
                raise self._broken(link, f"its host has acknowledged nothing for {silent_s:.1f} s")
            if unsent and self.log is not None:
                held_s = time.monotonic() - since_s
                self.log.held(self._name_of(self._rank_of(link)), unsent, held_s)

    def _await_handshake(self, link: socket.socket) -> None:
        """Wait for rank 0, which answers when it accepts connections; raises if the generation
        ends."""
        select.select([link], [], [], WAIT_SLICE_S)
        self._require_present()
        if (silent_s := unanswered_s(link)) > self._peer_timeout_s:
            raise TimeoutError(f"its host has acknowledged nothing for {silent_s:.1f} s")

    def _require_present(self) -> None:
        if self._over():
            raise LinkBroken("the generation is over")

    def _gather(self, meeting: MeetingPlace, hello: bytes) -> list[Link]:
        """Accept the connections of all other members (rank 0)."""
        _, generation, _, token = HELLO.unpack(hello)
        found: dict[int, Link] = {}
        while len(found) < self._world_size - 1:
            self._wait(meeting.listener)
            link, _ = meeting.listener.accept()
            try:
                link, first = greeted(link, self._encryption, HELLO.size, HELLO_TIMEOUT_S)
            except OSError as error:
                log.debug("rejected a connection without a valid hello: %s", error)
                link.close()
                continue
            mark, theirs, rank, proof = HELLO.unpack(first)
            known = (mark, theirs) == (MAGIC, generation) and compare_digest(proof, token)
            if known and 0 < rank < self._world_size:
                found[rank] = Link(prepared(link, self._peer_timeout_s))
            else:
                link.close()
        return [found[rank] for rank in sorted(found)]

    def _reach(self, leader: str, hello: bytes) -> Link:
        """Connect to rank 0, which may not accept connections yet.

        Its process listens, or the generation soon ends: where no connection can be made for long,
        the network between the hosts is cut, and a next generation would wait like this one.
        """
        host, _, port = leader.rpartition(":")
        deadline_s = time.monotonic() + self._peer_timeout_s
        while True:
            left_s = max(WAIT_SLICE_S, min(5.0, deadline_s - time.monotonic()))
            try:
                opened = socket.create_connection((host, int(port)), timeout=left_s)
                opened = prepared(opened, self._peer_timeout_s)
                link = connected(opened, self._encryption, self._await_handshake)
                link.setblocking(True)
                link.sendall(hello)
                return Link(link)
            except OSError as error:
                log.debug("rank 0 cannot be reached yet: %s", error)
                self._require_present()
                if time.monotonic() >= deadline_s:
                    raise Unavailable(
                        f"could not connect to rank 0 at {leader} within "
                        f"{self._peer_timeout_s:g} s: {error}",
                        hint="both workers reach the coordinator: check the network between their "
                        "hosts (routes, firewalls)",
                    ) from error
                time.sleep(WAIT_SLICE_S)


def _weighted(leaf: NDArray[Any], weight: float) -> NDArray[Any]:
    """A member's term of the sum; without weight it is zero, even for NaN values."""
    wide = leaf.astype(_wide(leaf))
    return wide * weight if weight else np.zeros_like(wide)


def _wide(leaf: NDArray[Any]) -> np.dtype[Any]:
    """The type for summing: at least single precision, also for half-precision values."""
    return np.promote_types(leaf.dtype, np.float32)


def _packed(leaves: Sequence[NDArray[Any]]) -> Packed:
    if not leaves:
        return np.empty(0, np.uint8)
    return np.concatenate(
        [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in leaves]
    )


def _unpacked(data: Packed, leaves: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    found, at = [], 0
    for leaf in leaves:
        found.append(data[at : at + leaf.nbytes].copy().view(leaf.dtype).reshape(leaf.shape))
        at += leaf.nbytes
    return found
