"""A simulated process: it can be paused, resumed and killed, and it keeps one session alive.

Every action of a process goes through `later` or a message; a paused process does them when it
is resumed, a dead one never. A session that breaks is opened again with a growing delay; answers
that belong to a broken session are dropped, so callers must be able to ask again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from strata.core.cluster import Outcome
from strata.core.events import Command
from strata.errors import Unavailable

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation


class Process:
    """Base of workers and agents."""

    def __init__(self, sim: "Simulation", host: str, name: str) -> None:
        self.sim = sim
        self.host = host
        self.name = name
        self.alive = True
        self.paused = False
        self.incarnation = 0
        self.session = 0
        self.connected = False
        self._frozen: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._failures = 0

    def later(self, seconds: float, action: Callable[..., None], *args: object) -> None:
        """Does something after a while, if still running then."""
        self.sim.world.after(seconds, self._do, action, *args)

    def _do(self, action: Callable[..., None], *args: object) -> None:
        if self.paused:
            self._frozen.append((action, args))
        elif self.alive:
            action(*args)

    def pause(self) -> None:
        """Stops the process as SIGSTOP does: it does nothing and does not know."""
        self.paused = True

    def resume(self) -> None:
        """Goes on with everything that came up meanwhile."""
        self.paused = False
        frozen, self._frozen = self._frozen, []
        for action, args in frozen:
            self.later(0.0, action, *args)

    def call(self, command: Command, then: Callable[[Outcome], None] | None = None) -> None:
        """Asks the coordinator; the answer comes unless the session breaks before."""
        coordinator, session = self.sim.coordinator, self.session

        def reply(outcome: Outcome) -> None:
            self._do(self._take, session, command, then, outcome)

        self.sim.network.send(self.host, True, coordinator.receive, self, session, command, reply)

    def _take(
        self,
        session: int,
        command: Command,
        then: Callable[[Outcome], None] | None,
        outcome: Outcome,
    ) -> None:
        if session != self.session:
            return
        if isinstance(outcome.refusal, Unavailable):
            self.later(self.sim.world.about(1.0), self._again, session, command, then)
        elif then is not None:
            then(outcome)

    def _again(
        self, session: int, command: Command, then: Callable[[Outcome], None] | None
    ) -> None:
        if session == self.session:
            self.call(command, then)

    def broken(self, session: int) -> None:
        """The connection is gone: connect again, after a delay that grows."""
        self._do(self._reconnect, session)

    def _reconnect(self, session: int) -> None:
        if session == self.session:
            self.session += 1
            self.connected = False
            self._failures = min(self._failures + 1, 6)
            self.later(self.sim.world.about(0.05 * 2**self._failures, 0.5), self.connect)

    def hear(self, session: int, message: object) -> None:
        """The coordinator says something."""
        self._do(self._listen, session, message)

    def _listen(self, session: int, message: object) -> None:
        if session == self.session:
            self.heard(message)

    def attached(self, incarnation: int) -> None:
        """The session is open and known to the coordinator."""
        self.incarnation = incarnation
        self.connected = True
        self._failures = 0
        coordinator = self.sim.coordinator
        if coordinator.kernel is not None:
            coordinator.attach(self, self.session, incarnation)

    def connect(self) -> None:
        """Registers or reattaches."""
        raise NotImplementedError

    def heard(self, message: object) -> None:
        """Acts on what the coordinator says."""
        raise NotImplementedError
