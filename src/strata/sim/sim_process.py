"""A simulated process: it can be paused, resumed and killed, and it keeps one stream open.

Every action of a process goes through `later` or a message; a paused process does them when it is
resumed, a dead one never. A stream that breaks is opened again with a growing delay; messages on an
older stream are dropped.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from strata.sim.coordinator_checks import Sign
from strata.sim.virtual_streams import Line, Reply

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
        self.line: Line | None = None
        self.connected = False
        self._frozen: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._failures = 0
        self._calls = 0

    def later(self, seconds: float, action: Callable[..., None], *args: object) -> None:
        """Call an action after a delay, if the process still runs then."""
        self.sim.world.after(seconds, self._do, action, *args)

    def _do(self, action: Callable[..., None], *args: object) -> None:
        if self.paused:
            self._frozen.append((action, args))
        elif self.alive:
            action(*args)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        self.paused = True

    def resume(self) -> None:
        """Resume, with everything that became due meanwhile."""
        self.paused = False
        frozen, self._frozen = self._frozen, []
        for action, args in frozen:
            self.later(0.0, action, *args)

    def call(self, path: str, request: Message, then: Callable[[Reply], None]) -> None:
        """Make a unary call; an answer to a call that is not the newest is dropped."""
        self._calls += 1
        number, sim = self._calls, self.sim

        def reply(result: Reply) -> None:
            self._do(self._answered, number, then, result)

        payload = request.SerializeToString()
        sim.network.send(self.host, True, sim.coordinator.call, self.host, path, payload, reply)

    def _answered(self, number: int, then: Callable[[Reply], None], result: Reply) -> None:
        if number == self._calls:
            then(result)

    def open(self, path: str) -> None:
        """Open a new stream that replaces the old one."""
        sim = self.sim
        self.connected = False
        self.line = line = Line(sim.network, self, path, self.incarnation)
        sim.network.send(self.host, True, sim.coordinator.open, line)

    def say(self, message: Message, sign: Sign | None = None) -> None:
        """Send a message over the stream."""
        assert self.line is not None
        sim, payload = self.sim, message.SerializeToString()
        sim.network.send(self.host, True, sim.coordinator.say, self.line, payload, sign)

    def drop(self) -> None:
        """Close the stream from this side."""
        line, self.line = self.line, None
        self.connected = False
        if line is not None:
            self.sim.network.send(self.host, True, self.sim.coordinator.lost, line)

    def reset(self) -> None:
        """Break the connection; both sides notice."""
        if self.line is not None:
            self.sim.network.send(self.host, True, self.sim.coordinator.lost, self.line)
            self.line.hang_up()

    def hung_up(self, line: Line) -> None:
        """Handle the end of a stream or a broken connection."""
        self._do(self._reconnect, line)

    def _reconnect(self, line: Line) -> None:
        if line is self.line:
            self.line = None
            self.connected = False
            self.try_again()

    def try_again(self) -> None:
        """Connect after a delay that grows with every failure."""
        self._failures = min(self._failures + 1, 6)
        self.later(self.sim.world.about(0.05 * 2**self._failures, 0.5), self.connect)

    def attached(self) -> None:
        """Note that the coordinator has accepted the stream."""
        self.connected = True
        self._failures = 0

    def hear(self, line: Line, payload: bytes) -> None:
        """Take a message of the coordinator."""
        self._do(self._listen, line, payload)

    def _listen(self, line: Line, payload: bytes) -> None:
        if line is self.line:
            self.heard(payload)

    def connect(self) -> None:
        """Register or reattach."""
        raise NotImplementedError

    def heard(self, payload: bytes) -> None:
        """Act on a message of the coordinator."""
        raise NotImplementedError
