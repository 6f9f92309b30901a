"""Record a worker's exchanges: two events for each step, and broken connections.

A step may have many exchanges, and a backward pass sends its buckets from other threads, so the
start is recorded with the first exchange of a step and the result when the step ends. Outside of a
step each exchange is recorded by itself. Both take a few microseconds (see
`benchmarks/bench_exchange_log.py`).
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from strata.core.workers.exchange_facts import (
    ConnectionChanged,
    ExchangeCompleted,
    ExchangeOpened,
    ExchangeStarted,
    PeerLagged,
)
from strata.core.workers.stack_reports import PendingExchange
from strata.sdk.peers.gossip import LAG_S
from strata.sdk.record.recorder import Recorder

if TYPE_CHECKING:
    from strata.sdk.peers.exchange import Exchange, LinkBroken

REASON_CHARS = 500

Transport = Literal["tcp", "gloo", "nccl"]


class ExchangeLog:
    """Records the exchanges of one worker. For the training thread; `began` also for backward.

    `step` returns the current step of the run. `in_step` says whether the script is in its block,
    `connecting` the generation whose members connect now, else 0.
    """

    def __init__(self, recorder: Recorder, step: Callable[[], int]) -> None:
        self._recorder, self._step = recorder, step
        self.in_step = False
        self._exchange: Exchange | None = None
        self._generation = self._number = self._count = 0
        self._op = ""
        self._began_s = self._ended_s = 0.0
        self._before = (0, 0)
        self._measured = True
        self._newest: Exchange | None = None
        self._pending_s = 0.0
        self.connecting = 0
        self._lags: dict[str, float] = {}

    def opened(self, exchange: "Exchange", transport: Transport) -> None:
        """Record that the members of a generation are connected."""
        self._recorder.emit(
            ExchangeOpened(
                generation=exchange.generation,
                rank=exchange.rank,
                members=exchange.members,
                transport=transport,
            )
        )
        if transport == "tcp":
            for rank in exchange.linked:
                peer = exchange.members[rank]
                self._recorder.emit(ConnectionChanged(peer=peer, path="direct", purpose="exchange"))

    def newest(self, waiting: bool) -> PendingExchange | None:
        """The newest exchange, which is pending if the worker is `waiting`; for any thread."""
        exchange, since_s = self._newest, self._pending_s
        if self.connecting:
            return PendingExchange(
                kind="connect", number=0, pending=True, generation=self.connecting
            )
        if exchange is None:
            return None
        pending = waiting and since_s > 0
        return PendingExchange(
            kind=exchange.kind,
            number=exchange.begun,
            pending=pending,
            generation=exchange.generation,
            since_s=time.monotonic() - since_s if pending else 0.0,
            missing=exchange.missing() if pending else [],
        )

    def began(self, exchange: "Exchange", measured: bool) -> None:
        """Note the start of an exchange; `exchange` counts its bytes if they are `measured`."""
        self._count += 1
        self._newest, self._pending_s = exchange, time.monotonic()
        self._measured = self._measured and measured
        if not self._op:
            self._exchange = exchange
            self._before = exchange.sent_bytes, exchange.received_bytes
            self._start(exchange.generation)

    def ended(self) -> None:
        """Note the end of an exchange."""
        self._ended_s = time.monotonic()
        self._pending_s = 0.0
        if not self.in_step:
            self._complete("")

    def begin_step(self) -> None:
        """Note the start of a step's block."""
        self.in_step = True

    def end_step(self, error: BaseException | None = None) -> None:
        """Record the exchanges of a step that was applied or failed."""
        self.in_step = False
        self._complete("" if error is None else _described(error))

    def broke(self, generation: int, exchange: "Exchange | None", broken: "LinkBroken") -> None:
        """Record a connection that broke in an exchange, or before all members were connected."""
        if not self._op:
            self._exchange = None
            self._start(generation)
        self._ended_s = time.monotonic()
        peer, own_link = "", False
        if exchange is not None and broken.rank is not None:
            peer = exchange.members[broken.rank]
            own_link = broken.rank in exchange.linked or exchange.transport != "tcp"
        if own_link:
            reason = str(broken)[:REASON_CHARS]
            self._recorder.emit(
                ConnectionChanged(peer=peer, path="disconnected", reason=reason, purpose="exchange")
            )
        self._complete(str(broken) or type(broken).__name__, peer)

    def failed(self, error: BaseException) -> None:
        """Record an exchange that failed for another reason."""
        self._ended_s = time.monotonic()
        self._complete(_described(error))

    def held(self, peer: str, held_bytes: int, held_s: float) -> None:
        """Record a member that has not received this worker's data for `held_s` seconds."""
        now_s = time.monotonic()
        interval_s = max(self._recorder.progress_interval_s, LAG_S)
        if held_s >= LAG_S and now_s - self._lags.get(peer, -interval_s) >= interval_s:
            self._lags[peer] = now_s
            self._recorder.emit(
                PeerLagged(peer=peer, held_s=held_s, held_bytes=held_bytes, purpose="exchange")
            )

    def taken(self, peer: str, held_s: float) -> None:
        """Record that a lagging member has received everything."""
        if self._lags and self._lags.pop(peer, None) is not None:
            self._recorder.emit(PeerLagged(peer=peer, held_s=held_s, purpose="exchange"))

    def _start(self, generation: int) -> None:
        self._generation, self._number = generation, self._step()
        self._op = f"exchange-{generation}-{self._number}"
        self._began_s = self._ended_s = time.monotonic()
        self._recorder.emit(ExchangeStarted(step=self._number, generation=generation), op=self._op)

    def _complete(self, error: str, peer: str = "") -> None:
        op, self._op = self._op, ""
        self._pending_s = 0.0
        count, self._count = self._count, 0
        if not op:
            return
        exchange, sent_bytes, received_bytes = self._exchange, 0, 0
        measured, self._measured = self._measured, True
        if exchange is not None:
            sent_bytes = exchange.sent_bytes - self._before[0] if measured else -1
            received_bytes = exchange.received_bytes - self._before[1] if measured else -1
        completed = ExchangeCompleted(
            ok=not error,
            error=error[:REASON_CHARS],
            step=self._number,
            generation=self._generation,
            took_s=self._ended_s - self._began_s,
            exchanges=count,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            peer=peer,
        )
        self._recorder.emit(completed, op=op)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
