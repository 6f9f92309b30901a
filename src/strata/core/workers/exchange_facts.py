"""Facts that a worker records about its peers: connections, messages, blobs, exchanged values.

`run.average`, `strata.torch.data_parallel` and `strata.torch.Mesh` exchange values among all
members of a generation in every step. A step records two small events however often it exchanges:
`ExchangeStarted` and `ExchangeCompleted`. The members are recorded once for each generation, in
`ExchangeOpened`. A connection that breaks is a `ConnectionChanged` with the name of the peer. A
peer that receives slowly makes the sender hold its data: `PeerLagged`.
"""

from typing import Literal

from msgspec import field

from strata.core.events import Fact, kinds_in
from strata.core.workers.worker_operations import Completed


class ExchangeOpened(Fact, frozen=True, kw_only=True):
    """The members of a generation are connected. `members` are worker ids in the order of ranks.

    `transport` is `tcp` for `run.average`, where every member is connected to rank 0. It is `gloo`
    or `nccl` for PyTorch collectives, which connect the members with each other.
    """

    sentence = "connected to the members of generation {generation} over {transport}[: {members}]"

    generation: int
    rank: int
    members: list[str]
    transport: Literal["tcp", "gloo", "nccl"] = "tcp"


class ExchangeStarted(Fact, frozen=True, kw_only=True):
    """The first exchange of a step begins; `ExchangeCompleted` has the same `op`."""

    sentence = "started to exchange values with its peers at step {step}, generation {generation}"

    step: int
    generation: int


class ExchangeCompleted(Completed, frozen=True, kw_only=True):
    """The exchanges of a step ended: this worker has the values of all members and applied the
    step, or not.

    `took_s` is the time from the start of the first exchange to the end of the last one. For
    `run.average` the bytes are those on its connections, for a collective the size of this worker's
    values and of the result. They are -1 with `strata.torch.Mesh`, whose collectives are called by
    the model. `peer` is the member whose connection broke, if known.
    """

    sentence = (
        "[{ok:?}exchanged|failed to exchange] values with [{peer}|its peers][ at step "
        "{step}], generation {generation}[ in {took_s}][, sent {sent_bytes}][, received "
        "{received_bytes}][: {error}]"
    )

    step: int = -1
    generation: int = 0
    took_s: float = 0.0
    exchanges: int = 1
    sent_bytes: int = 0
    received_bytes: int = 0
    peer: str = ""


class PeerLagged(Fact, frozen=True, kw_only=True):
    """A peer receives more slowly than this worker sends.

    Recorded when the oldest data has been held for 2 seconds, again every `progress_interval_s` (at
    least every 2 seconds), and once with `messages` and `held_bytes` 0 when the peer has received
    everything. `held_s` is how long the oldest data has been held.
    """

    sentence = "{peer} receives slowly: [{held_bytes}|data] waited {held_s}"

    peer: str
    held_s: float
    messages: int = 0
    held_bytes: int = 0
    purpose: Literal["messages", "exchange"] = "messages"


class ConnectionChanged(Fact, frozen=True, kw_only=True):
    """A connection to a peer or to the coordinator opened or closed.

    `purpose` is `messages` (and the results that they announce) or `exchange` (of values in a
    step).
    """

    sentence = "the connection to {peer} is now {path}[: {reason}]"
    lane_mark = True

    peer: str
    path: Literal["direct", "relayed", "disconnected"]
    reason: str = ""
    purpose: Literal["", "messages", "exchange"] = ""


class NeighborsChanged(Fact, frozen=True, kw_only=True):
    """The gossip neighbours of this worker changed."""

    sentence = "gossip neighbors changed[, added: {added}][, removed: {removed}]"

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


class PeerLatencyChanged(Fact, frozen=True, kw_only=True):
    """The latency to a peer changed much.

    `latency_s` is a moving average of the time until the peer acknowledges a message (as in TCP, a
    new time counts for one eighth). It is recorded for the first message to a peer, and again when
    it differs from the last recorded value by a factor of 2 or more and by 5 ms or more, at most
    every 5 s.
    """

    sentence = "the latency to {peer} is now {latency_s}"

    peer: str
    latency_s: float


class BlobAdded(Fact, frozen=True, kw_only=True):
    """A blob can be fetched from this worker; `blob` is its hash, `what` describes it."""

    sentence = "offers {what} to its peers as blob {blob}[, {size_bytes}]"

    blob: str
    what: str
    size_bytes: int = 0


class MessageSent(Fact, frozen=True, kw_only=True):
    """A message was sent to peers.

    `author` made the announced result, for `step`. `rebroadcasts` counts how often it was passed on
    before it came to this worker, and this time: 0 if the author itself sends it. `attempt` counts
    how often this worker has sent it to this peer.
    """

    sentence = "sent {type} {message}[ to {to}], attempt {attempt}"

    message: str
    type: str
    size_bytes: int
    to: list[str] = field(default_factory=list)
    rebroadcasts: int = 0
    blob: str = ""
    batch: str = ""
    author: str = ""
    step: int = -1
    attempt: int = 1


class MessageReceived(Fact, frozen=True, kw_only=True):
    """A peer's message arrived; `rebroadcasts` is that of its `MessageSent`."""

    sentence = "received {type} {message} from {sender}"

    message: str
    type: str
    size_bytes: int
    sender: str
    blob: str = ""
    batch: str = ""
    author: str = ""
    step: int = -1
    rebroadcasts: int = 0


class MessageRejected(Fact, frozen=True, kw_only=True):
    """A peer's message arrived and was rejected."""

    sentence = "rejected [{type}|message][ {message}][ from {sender}][: {reason}]"
    lane_mark = True

    message: str
    reason: str
    type: str = ""
    sender: str = ""
    author: str = ""
    step: int = -1


class ParametersRequested(Fact, frozen=True, kw_only=True):
    """A peer was asked for the model."""

    sentence = "[{ok:?}got the model from|failed to get the model from] {peer}[: {error}]"

    peer: str
    ok: bool = True
    error: str = ""


KINDS: tuple[type[Fact], ...] = kinds_in(globals())
