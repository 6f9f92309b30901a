"""What a worker records about the values that it exchanges with the others in a step.

`run.average`, `strata.torch.data_parallel` and `strata.torch.Mesh` exchange values among all
members of a generation. That happens in every step, so it is recorded in two small events for each
step, however often the step exchanges: `ExchangeStarted` and `ExchangeCompleted`. With whom is
recorded once for each generation, in `ExchangeOpened`. A connection that breaks is a
`ConnectionChanged` with the name of the peer.

A worker that takes what is sent to it too slowly makes the sender hold it: `PeerLagged`.
"""

from typing import Literal

from strata.core.events import Fact
from strata.core.worker_operations import Completed


class ExchangeOpened(Fact, frozen=True):
    """The members of a generation are connected. `members` are worker ids in the order of ranks.

    `transport` is `tcp` for `run.average`, where every member is connected to rank 0. It is `gloo`
    or `nccl` for the collectives of PyTorch, which connect the members among each other.
    """

    generation: int
    rank: int
    members: list[str]
    transport: Literal["tcp", "gloo", "nccl"] = "tcp"


class ExchangeStarted(Fact, frozen=True):
    """The first exchange of a step begins; `ExchangeCompleted` has the same `op`."""

    step: int
    generation: int


class ExchangeCompleted(Completed, frozen=True):
    """The exchanges of a step ended: this worker has the values of all members and applied the
    step, or not.

    `took_s` is the time from the start of the first exchange to the end of the last one. The bytes
    of `run.average` are those on its connections; those of a collective are the size of this
    worker's values and of the result. They are -1 with `strata.torch.Mesh`, whose collectives are
    called by the model. `peer` is the member whose connection broke, as far as it is known.
    """

    step: int = -1
    generation: int = 0
    took_s: float = 0.0
    exchanges: int = 1
    sent_bytes: int = 0
    received_bytes: int = 0
    peer: str = ""


class PeerLagged(Fact, frozen=True):
    """A peer takes what this worker sends more slowly than it is sent.

    Recorded when the oldest of it has been held for 2 seconds, again every `progress_interval_s`
    (at least every 2 seconds), and once with `messages` and `held_bytes` 0 when the peer has taken
    everything. `held_s` is how long the oldest of it has been held.
    """

    peer: str
    held_s: float
    messages: int = 0
    held_bytes: int = 0
    purpose: Literal["messages", "exchange"] = "messages"


KINDS: tuple[type[Fact], ...] = (ExchangeOpened, ExchangeStarted, ExchangeCompleted, PeerLagged)
