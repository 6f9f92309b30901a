"""`run.average`: the members of a generation average their arrays, without any framework.

Everyone sends to the member with rank 0, which adds up in the order of ranks and sends the result
to all, so every result is the same on all members, bit for bit. That is simple and fast while a
model is small (two workers exchange a megabyte in about a millisecond); for large ones there are
the collectives of PyTorch and JAX.

Each generation meets anew: rank 0 listens where its standing says; the others connect, prove with
the generation's token that they belong to it, and say their names. What breaks a connection in the
middle (a member that died, a cable) ends the exchange for everyone, within moments: the worker that
notices closes its connections, and everyone waits for the next generation. Rank 0 tells the others
first which member it lost. If no generation comes by itself, since all are alive, the coordinator
is asked for one. Then `GenerationChanged` is raised: the step was not applied here, and the script
lets go of it.
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

from strata.errors import InvalidArgument
from strata.sdk.exchange_log import ExchangeLog, Transport
from strata.sdk.meeting import MeetingPlace
from strata.sdk.value_tree import as_array, flatten, rebuild

log = logging.getLogger(__name__)

Values = TypeVar("Values")
Packed: TypeAlias = NDArray[np.uint8]

HELLO = struct.Struct("<8sqq64s")  # a mark, the generation, the rank, the token
HEAD = struct.Struct("<qqdB")  # the number of the exchange, its bytes, the weight, its kind
AVERAGE, SHARE, EVERYONE, ENDED = range(4)
KINDS = ("averages", "hears what rank 0 says", "hears what everyone says", "has ended")
MARK = b"strata-2"
WAIT_SLICE_S = 0.05
GREETING_S = 2.0
LOOK_S = 0.25
"""How long a worker looks for the member that is lost, after a collective of PyTorch failed."""

NOBODY = -1


class LinkBroken(Exception):
    """A connection to a member broke, or the generation is over.

    `rank` is that of the member, where it is known. `told` says that rank 0 knew it.
    """

    def __init__(self, reason: str, rank: int | None = None, *, told: bool = False) -> None:
        super().__init__(reason)
        self.rank, self.told = rank, told


class Exchange:
    """The connections of one generation. For the training thread.

    `host` is where this worker is met, `name` its id, and `members` are the ids of all in the order
    of ranks. `total_weight` is that of all members in the last average. `over` says whether the
    generation has ended; it is asked while waiting. Until everyone has met, `stopped` ends it too;
    afterwards a worker that is to stop finishes its step, since the others wait for its part of it.

    `sent_bytes` and `received_bytes` count what was exchanged, and `log` records it. `transport` is
    what the members exchange values by.
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
    ) -> None:
        self.generation, self.rank = generation, rank
        self.host = meeting.address.rpartition(":")[0]
        self.members = [name]
        self.transport: Transport = "tcp"
        self.log: ExchangeLog | None = None
        self.sent_bytes = self.received_bytes = 0
        self._world_size = world_size
        self._over: Callable[[], bool] = lambda: over() or stopped()
        self._number = 0
        self.total_weight = 0.0
        self._scratch: Packed = np.empty(0, np.uint8)
        self._links: list[socket.socket] = []
        self._half_sent: set[socket.socket] = set()
        hello = HELLO.pack(MARK, generation, rank, token.encode())
        try:
            if world_size > 1 and rank == 0:
                self._links = self._gather(meeting, hello)
            elif world_size > 1:
                self._links = [self._reach(leader, hello)]
        except OSError as error:
            raise LinkBroken(f"the members did not meet: {error}") from error
        try:
            self.members = self.everyone(name)
        except BaseException:
            self.close()
            raise
        self._over = over

    @property
    def linked(self) -> range:
        """The ranks that this worker has a connection to."""
        return range(1, self._world_size) if self.rank == 0 else range(1)

    def opened(self, transport: Transport) -> None:
        """The members are connected by this transport, in addition to these connections."""
        self.transport = transport
        if self.log is not None and self._world_size > 1:
            self.log.opened(self, transport)

    def begin(self, sent_bytes: int = 0, received_bytes: int = 0, *, measured: bool = True) -> None:
        """An exchange begins; for collectives with so many bytes of values, if they are known."""
        if self.log is not None and self._world_size > 1:
            self.log.began(self, measured)
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes

    def average(self, values: Values, weight: float) -> Values:
        """The weighted mean over all members, of every array and number in `values`."""
        leaves = [as_array(value) for value in flatten(values)]
        mine = _packed(leaves)
        self._number += 1
        self.begin()
        mean = self._lead(mine, leaves, weight) if self.rank == 0 else self._follow(mine, weight)
        return cast(Values, rebuild(values, _unpacked(mean, leaves)))

    def share(self, text: str = "") -> str:
        """What rank 0 says, told to everyone."""
        self._number += 1
        self.begin()
        if self.rank:
            return bytes(self._receive(self._links[0], None, SHARE)[0]).decode()
        for link in self._links:
            self._send(link, np.frombuffer(text.encode(), np.uint8), 0.0, SHARE)
        return text

    def everyone(self, text: str) -> list[str]:
        """What each member says, told to everyone, in the order of ranks."""
        self._number += 1
        self.begin()
        said = [text]
        if self.rank:
            own = np.frombuffer(text.encode(), np.uint8)
            self._send(self._links[0], own, 0.0, EVERYONE)
        else:
            received = (self._receive(link, None, EVERYONE) for link in self._links)
            said += [bytes(data).decode() for data, _ in received]
        return msgspec.json.decode(self.share(msgspec.json.encode(said).decode()), type=list[str])

    @property
    def over(self) -> bool:
        """Whether the generation has ended; members that wait for others ask now and then."""
        return self._over()

    def find_lost(self, broken: LinkBroken) -> LinkBroken:
        """The same, with the member whose connection broke, as far as it can be known."""
        if broken.told or (self.rank == 0 and broken.rank is not None):
            return broken
        rank = self._lost_rank(0.0 if self._over() else LOOK_S)
        if rank == NOBODY:
            return LinkBroken(str(broken), told=True)
        return LinkBroken(str(broken), broken.rank if rank is None else rank)

    def close(self, lost: int = NOBODY) -> None:
        """End the exchange. Rank 0 tells the others which member is lost, if one is."""
        for link in self._links:
            if self.rank == 0 and link not in self._half_sent:
                with suppress(OSError):
                    link.send(HEAD.pack(lost, 0, 0.0, ENDED), socket.MSG_DONTWAIT)
            link.close()
        self._links = []

    def _lost_rank(self, within_s: float) -> int | None:
        """The member whose connection is closed, or that rank 0 has lost; None if all are open."""
        deadline_s = time.monotonic() + within_s
        while self._links:
            for link in select.select(self._links, [], [], WAIT_SLICE_S if within_s else 0)[0]:
                try:
                    head = link.recv(HEAD.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
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

    def _rank_of(self, link: socket.socket) -> int:
        return self._links.index(link) + 1 if self.rank == 0 else 0

    def _name_of(self, rank: int) -> str:
        return self.members[rank] if rank < len(self.members) else f"rank {rank}"

    def _broken(self, link: socket.socket, reason: str) -> LinkBroken:
        rank = self._rank_of(link)
        return LinkBroken(f"the connection to {self._name_of(rank)} broke: {reason}", rank)

    def _lead(self, mine: Packed, leaves: Sequence[NDArray[Any]], weight: float) -> Packed:
        """Adds up everyone's, in the order of ranks, and tells everyone the mean."""
        total = weight
        sums = [_weighted(leaf, weight) for leaf in leaves]
        for link in self._links:
            theirs, their_weight = self._receive(link, mine.size)
            total += their_weight
            for at, leaf in enumerate(_unpacked(theirs, leaves)):
                sums[at] += _weighted(leaf, their_weight)
        if not total > 0:
            raise InvalidArgument("the weights of an average add up to 0", hint="count the samples")
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

    def _send(self, link: socket.socket, data: Packed, weight: float, kind: int = AVERAGE) -> None:
        head = HEAD.pack(self._number, data.size, weight, kind)
        began_s = time.monotonic()
        self._half_sent.add(link)
        for part in (memoryview(head), data.data):
            while part:
                self._wait(link, unsent=part.nbytes, since_s=began_s)
                try:
                    # A plain send would wait, unseen, until the peer has taken all of it.
                    part = part[link.send(part, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise self._broken(link, str(error)) from error
        self._half_sent.discard(link)
        self.sent_bytes += HEAD.size + data.size
        if self.log is not None:
            self.log.taken(self._name_of(self._rank_of(link)), time.monotonic() - began_s)

    def _receive(
        self, link: socket.socket, size: int | None, kind: int = AVERAGE
    ) -> tuple[Packed, float]:
        head = bytearray(HEAD.size)
        self._fill(link, memoryview(head))
        number, theirs, weight, their_kind = HEAD.unpack(head)
        if their_kind == ENDED:
            raise self._ended(int(number))
        size = theirs if size is None else size
        if (number, theirs, their_kind) != (self._number, size, kind):
            raise InvalidArgument(
                f"rank {self._rank_of(link)} {KINDS[their_kind % len(KINDS)]} with {theirs} bytes "
                f"in its exchange {number}, and this worker {KINDS[kind]} with {size} bytes in its "
                f"exchange {self._number}",
                hint="every worker must do the same in the same order; what may differ between "
                "them, such as when to leave a loop, is decided with run.agree(value)",
            )
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        data = self._scratch[:size]
        self._fill(link, data.data)
        self.received_bytes += HEAD.size + size
        return data, weight

    def _ended(self, lost: int) -> LinkBroken:
        """Why rank 0 has ended the exchange."""
        leader = self._name_of(0)
        if lost == NOBODY:
            return LinkBroken(f"{leader} ended the exchange", told=True)
        reason = f"{leader} lost its connection to {self._name_of(lost)}"
        return LinkBroken(reason, lost, told=True)

    def _fill(self, link: socket.socket, part: memoryview) -> None:
        while part:
            self._wait(link)
            try:
                count = link.recv_into(part)
            except OSError as error:
                raise self._broken(link, str(error)) from error
            if not count:
                raise self._broken(link, "the other side closed it")
            part = part[count:]

    def _wait(self, link: socket.socket, *, unsent: int = 0, since_s: float = 0.0) -> None:
        """Until the socket is ready; the training thread looks up now and then."""
        reads, writes = ([], [link]) if unsent else ([link], [])
        while not any(select.select(reads, writes, [], WAIT_SLICE_S)):
            self._require_present()
            if unsent and self.log is not None:
                held_s = time.monotonic() - since_s
                self.log.held(self._name_of(self._rank_of(link)), unsent, held_s)

    def _require_present(self) -> None:
        if self._over():
            raise LinkBroken("the generation is over")

    def _gather(self, meeting: MeetingPlace, hello: bytes) -> list[socket.socket]:
        """Rank 0 waits for everyone, in whatever order they come."""
        _, generation, _, token = HELLO.unpack(hello)
        found: dict[int, socket.socket] = {}
        while len(found) < self._world_size - 1:
            self._wait(meeting.listener)
            link, _ = meeting.listener.accept()
            try:
                mark, theirs, rank, proof = _greeting(link)
            except (OSError, struct.error) as error:
                log.debug("a process connected to the meeting and left: %s", error)
                link.close()
                continue
            known = (mark, theirs) == (MARK, generation) and compare_digest(proof, token)
            if known and 0 < rank < self._world_size:
                found[rank] = _prepared(link)
            else:
                link.close()
        return [found[rank] for rank in sorted(found)]

    def _reach(self, leader: str, hello: bytes) -> socket.socket:
        """The others connect to rank 0, which may not have come so far yet."""
        host, _, port = leader.rpartition(":")
        while True:
            try:
                link = _prepared(socket.create_connection((host, int(port)), timeout=5.0))
                link.sendall(hello)
                return link
            except OSError as error:
                log.debug("rank 0 is not to be reached yet: %s", error)
                self._require_present()
                time.sleep(WAIT_SLICE_S)


def _greeting(link: socket.socket) -> tuple[bytes, int, int, bytes]:
    """The first message of a connection; one that sends nothing delays others only shortly."""
    link.settimeout(GREETING_S)
    mark, generation, rank, token = HELLO.unpack(link.recv(HELLO.size, socket.MSG_WAITALL))
    return mark, generation, rank, token


def _prepared(link: socket.socket) -> socket.socket:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _weighted(leaf: NDArray[Any], weight: float) -> NDArray[Any]:
    """A member's part of the sum; one without weight adds nothing, whatever its values are."""
    wide = leaf.astype(_wide(leaf))
    return wide * weight if weight else np.zeros_like(wide)


def _wide(leaf: NDArray[Any]) -> np.dtype[Any]:
    """Half precision is added up in single, so that a thousand workers still count."""
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
