"""The exchange of the generation that was entered: begun when first used, and ended with it."""

import logging
from collections.abc import Callable
from typing import TypeVar

from strata.sdk.exchange import NOBODY, Exchange, LinkBroken
from strata.sdk.exchange_log import ExchangeLog
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

NOTICE_S = 2.0

Result = TypeVar("Result")


class Exchanges:
    """Keeps the present exchange, and counts what was done in all. For the training thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._present: Exchange | None = None
        self.count = 0
        self.log = ExchangeLog(worker.recorder, lambda: worker.membership.steps)

    def together(self, act: Callable[[Exchange], Result], stopped: Callable[[], bool]) -> Result:
        """Does what all members do together; raises `LinkBroken`, if one of them is lost in it,
        once there is a generation to enter."""
        worker = self._worker
        worker.waiting = True
        self.count += 1
        try:
            result = act(self._met(stopped))
        except LinkBroken as broken:
            self._break(broken)
            self._await_change(str(broken), stopped)
            raise
        except BaseException as error:
            self.log.failed(error)
            self.close()  # half an exchange is of no use to anybody
            raise
        finally:
            worker.waiting = False
        self.log.ended()
        return result

    def close(self, lost: int = NOBODY) -> None:
        """Ends the present exchange, which the others notice."""
        if self._present is not None:
            self._present.close(lost)
            self._present = None

    def _break(self, broken: LinkBroken) -> None:
        """Record a break, tell the others whose connection it was, and end the exchange."""
        exchange = self._present
        if exchange is not None:
            broken = exchange.find_lost(broken)
        self.log.broke(self._worker.membership.place.generation, exchange, broken)
        self.close(NOBODY if broken.rank is None else broken.rank)

    def _met(self, stopped: Callable[[], bool]) -> Exchange:
        membership = self._worker.membership
        place = membership.place
        if self._present is None or self._present.generation != place.generation:
            self.close()
            self._present = Exchange(
                place.generation,
                place.rank,
                place.world_size,
                membership.leader,
                membership.token,
                self._worker.meeting,
                lambda: membership.changed or membership.deserted,
                stopped,
                name=self._worker.session.identity.worker_id,
            )
            self._present.log = self.log
            self._present.opened("tcp")
        return self._present

    def _await_change(self, reason: str, stopped: Callable[[], bool]) -> None:
        """Wait for the next generation; if all members live, ask the coordinator for one."""
        session, membership = self._worker.session, self._worker.membership
        if session.wait_for(lambda: membership.changed or stopped(), NOTICE_S):
            return
        log.warning("the exchange with the other workers broke: %s", reason)
        generation = membership.place.generation
        report = pb.ReportBrokenExchange(generation=generation, reason=reason)
        session.answer(session.ask("broken_exchange", report))
        session.wait_for(lambda: membership.changed or stopped())
