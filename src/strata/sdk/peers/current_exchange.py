"""The exchange of the entered generation: opened when first used, closed with the generation."""

import logging
from collections.abc import Callable
from typing import TypeVar

from strata.sdk.peers.exchange import NOBODY, Exchange, LinkBroken
from strata.sdk.peers.exchange_log import ExchangeLog
from strata.sdk.peers.peer_encryption import peer_encryption
from strata.sdk.session.run_worker import RunWorker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

GENERATION_WAIT_S = 2.0

Result = TypeVar("Result")


class CurrentExchange:
    """The current exchange, and the number of uses. For the training thread.

    When an exchange of a step has succeeded, all members are in that step and can end it. So if
    workers joined or were released meanwhile, the later exchanges of the step are not interrupted:
    members that have changed their model could not undo it.
    """

    def __init__(self, worker: RunWorker) -> None:
        self._worker = worker
        self._current: Exchange | None = None
        self.count = 0
        self.in_step = False
        self._met_in_step = False
        self.log = ExchangeLog(worker.recorder, lambda: worker.membership.steps)
        worker.exchange = self.log.newest

    def together(self, act: Callable[[Exchange], Result], stopped: Callable[[], bool]) -> Result:
        """Run a collective action; on `LinkBroken` wait for the next generation, then raise it."""
        worker = self._worker
        worker.waiting = True
        self.count += 1
        try:
            result = act(self._opened(stopped))
        except LinkBroken as broken:
            self._break(broken)
            self._await_change(str(broken), stopped)
            raise
        except BaseException as error:
            self.log.failed(error)
            self.close()  # a partial exchange cannot be continued
            raise
        finally:
            worker.waiting = False
        self.log.ended()
        self._met_in_step = self.in_step
        return result

    def begin_step(self) -> None:
        """Note that the exchanges from now on belong to a step."""
        self.in_step, self._met_in_step = True, False
        self.log.begin_step()

    def end_step(self) -> None:
        """Note that the step has ended."""
        self.in_step = self._met_in_step = False

    @property
    def interrupted(self) -> bool:
        """Whether a newer generation ends the exchanges of the entered one."""
        membership = self._worker.membership
        return membership.changed and not (self._met_in_step and membership.planned)

    def close(self, lost: int = NOBODY) -> None:
        """Close the current exchange, which the other members notice."""
        if self._current is not None:
            self._current.close(lost)
            self._current = None

    def _break(self, broken: LinkBroken) -> None:
        """Record a broken connection, tell the others whose it was, and close the exchange."""
        exchange = self._current
        if exchange is not None:
            broken = exchange.find_lost(broken)
        self.log.broke(self._worker.membership.place.generation, exchange, broken)
        self.close(NOBODY if broken.rank is None else broken.rank)

    def _opened(self, stopped: Callable[[], bool]) -> Exchange:
        membership = self._worker.membership
        place = membership.place
        if self._current is None or self._current.generation != place.generation:
            self.close()
            self.log.connecting = place.generation
            try:
                self._current = Exchange(
                    place.generation,
                    place.rank,
                    place.world_size,
                    membership.leader,
                    membership.token,
                    self._worker.meeting,
                    lambda: self.interrupted or membership.left_by_peer,
                    stopped,
                    name=self._worker.session.identity.worker_id,
                    peer_timeout_s=self._worker.peer_timeout_s,
                    encryption=peer_encryption(membership.entered.peer_certificate),
                )
            finally:
                self.log.connecting = 0
            self._current.log = self.log
            self._current.opened("tcp")
        return self._current

    def _await_change(self, reason: str, stopped: Callable[[], bool]) -> None:
        """Wait for the next generation; if all members are alive, request one."""
        session, membership = self._worker.session, self._worker.membership
        if session.wait_for(lambda: membership.changed or stopped(), GENERATION_WAIT_S):
            return
        log.warning("the exchange with the other workers failed: %s", reason)
        generation = membership.place.generation
        report = pb.ReportBrokenExchange(generation=generation, reason=reason)
        session.answer(session.ask("broken_exchange", report))
        session.wait_for(lambda: membership.changed or stopped())
