"""Where a script is: in which of its loops, and which of them a restored state has passed.

The number of steps alone does not say it. After the last step of an epoch a script evaluates and
changes its learning rate; the state before that and the one after it have the same step. So a state
is saved, and given to other workers, only while the script is in a loop over data (or before its
first one), together with the script's position: the loops over `run.epochs` that have ended, the
epoch, and the loops over data that have ended in it. A process that starts from the state runs the
script from its beginning, and the loops that come before the position are empty.

Until the script has come to its position it *replays*: it repeats code whose effects are already in
the restored state. If that code changes the state, as a scheduler's step between two loops does,
the state would be changed twice. So the state is checked before each loop that is replayed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from strata.errors import InvalidArgument, NotAllowedNow


class Position(NamedTuple):
    """The loop that a script is in, or comes to next.

    Positions are compared as tuples. `epoch` is -1 outside of `run.epochs`.
    """

    phase: int = 0
    epoch: int = -1
    loop: int = 0

    @property
    def key(self) -> str:
        """The loop's name, the same for every worker that runs the script."""
        return f"{self.phase}.{self.epoch}.{self.loop}"


class Script:
    """Follows one process through its script. For the training thread.

    `check_replay` raises if the script has changed the restored state while it replays.
    """

    def __init__(self) -> None:
        self.check_replay: Callable[[], None] = lambda: None
        self.resumed = Position()
        self._replays = False
        self.epochs = 0
        self.max_steps = 0
        self._now = Position()
        self._opened = 0
        self._ended: set[int] = set()
        self._started = False
        self._asked = ("", 0)

    @property
    def in_epoch(self) -> bool:
        """Whether the script is in a loop over `run.epochs`."""
        return self._now.epoch >= 0

    @property
    def position(self) -> Position:
        """Where a state that is saved now belongs."""
        if self._replays:
            return self.resumed
        loop = 0
        while loop in self._ended:
            loop += 1
        return self._now._replace(loop=loop)

    @property
    def between_loops(self) -> bool:
        """Whether the script has left a loop and not yet begun the next one."""
        return self._started and len(self._ended) >= self._opened

    def state_dict(self) -> dict[str, Any]:
        """What is saved with a state."""
        return self.position._asdict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over the position of a restored state.

        Raises `NotAllowedNow` in a process whose script has already gone to another position.
        """
        position = Position(**{name: int(saved[name]) for name in Position._fields})
        if self._started and position != self.position:
            raise NotAllowedNow(
                f"the run goes back to loop {position.key} of the script, and this process is at "
                f"loop {self.position.key}",
                hint="the process has to start again; an agent does that by itself",
            )
        self.resumed, self._replays = position, not self._started

    def open_loop(self) -> tuple[Position, bool]:
        """The place of the loop that the script opens now, and whether it is in the past."""
        place = self._now._replace(loop=self._opened)
        self._opened += 1
        self._started = True
        past = self._replays and place < self.resumed
        self._replay(ends=not past)
        if past:
            self._ended.add(place.loop)
        return place, past

    def step(self) -> None:
        """A step begins: a script without loops over data has come to its position."""
        self._replay(ends=True)

    def _replay(self, *, ends: bool) -> None:
        if self._replays:
            self.check_replay()
            self._replays = not ends

    def handed(self) -> None:
        """A batch is handed out: what the script does from here on, it may do again."""
        self._asked = ("", 0)

    def agreement_key(self, step: int) -> str:
        """The name of the next value that the workers agree on, the same for all of them."""
        place = f"{self.position.key}@{step}"
        asked, count = self._asked
        self._asked = (place, count + 1 if asked == place else 1)
        return f"{place}#{self._asked[1]}"

    def end_loop(self, place: Position) -> None:
        """The script has left a loop."""
        if (place.phase, place.epoch) == (self._now.phase, self._now.epoch):
            self._ended.add(place.loop)

    def run_epochs(
        self, count: int | None, max_steps: int | None, steps: Callable[[], int]
    ) -> Iterator[int]:
        """The numbers of the epochs that are left; `steps` counts the steps of the run."""
        if self._now.epoch >= 0:
            raise NotAllowedNow(
                "run.epochs is open already", hint="use one loop over run.epochs at a time"
            )
        if (count is None) == (max_steps is None) or (count or max_steps or 0) < 1:
            raise InvalidArgument(
                f"run.epochs got {count!r} epochs and max_steps {max_steps!r}",
                hint="give the number of epochs, or max_steps=N",
            )
        phase = self._now.phase
        self._started = True
        self._replay(ends=False)
        self.epochs, self.max_steps = count or 0, max_steps or 0
        epoch = self.resumed.epoch if self.resumed.phase == phase else 0
        epoch = max(epoch, 0)
        try:
            while self.resumed.phase <= phase and (
                epoch < count if count is not None else steps() < self.max_steps
            ):
                self._move(Position(phase, epoch))
                yield epoch
                epoch += 1
                # The epoch's code is done: a state that is saved now is one of the next epoch.
                self._move(Position(phase, epoch))
        finally:
            self.epochs = self.max_steps = 0
            self._move(Position(phase + 1))

    def _move(self, place: Position) -> None:
        self._now, self._opened, self._ended = place, 0, set()
