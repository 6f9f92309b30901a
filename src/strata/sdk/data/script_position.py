"""The position of a script among its loops, and which loops a restored state has completed.

The number of steps does not determine it. After the last step of an epoch a script may evaluate and
change its learning rate; the states before and after that have the same step. So a state is saved,
or sent to other workers, only while the script is in a loop over data (or before its first one),
together with the script's position: the number of completed loops over `run.epochs`, the epoch, and
the number of completed loops over data in it. A process that restores the state runs the script
from its beginning, and the loops before the position are empty.

Until the script reaches that position it *replays*: it repeats code whose effects are already in
the restored state. If that code changes the state, as a scheduler's step between two loops does, it
would be changed twice. So the state is checked before each replayed loop.

A state is saved with the length of the loop that ended just before the position, too. If the script
now asks for more epochs or steps in that loop, the run is extended: the position moves back into
the loop, and training continues at its end.

A loop over `run.epochs(max_steps=N)` may end inside an epoch. Then the position moves back into the
loop over data that the limit cut. The script's code after that loop has run; if it changed the
state, the run cannot be extended, because that code would be applied twice.

A stop is an exception that leaves the open loops. They are not complete then, so the position stays
in the loop, for a save while the worker leaves. If the script was between two loops, or continued
after the loop, its state belongs to no position and must not be saved (`resumable`).

`Loader` is the iterable that `run.batches` and `run.loader` return.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from strata.errors import InvalidArgument, NotAllowedNow


class Position(NamedTuple):
    """The loop that a script is in, or its next one.

    Positions are compared as tuples. `epoch` is -1 outside of `run.epochs`.
    """

    phase: int = 0
    epoch: int = -1
    loop: int = 0

    @property
    def key(self) -> str:
        """The loop's name, the same for every worker that runs the script."""
        return f"{self.phase}.{self.epoch}.{self.loop}"


class LoopLength(NamedTuple):
    """The length of a loop as the script asked for it; 0 is no limit."""

    epochs: int = 0
    steps: int = 0

    def exceeds(self, before: "LoopLength") -> bool:
        """Whether this is longer than the length before, in epochs or steps."""
        pairs = zip(self, before, strict=True)
        return any(old and (not new or new > old) for new, old in pairs)


class ScriptPosition:
    """Follows one process through its script. For the training thread.

    `check_replay` raises if the script has changed the restored state while it replays. `stopping`
    says whether a stop is requested. `note_cut` notes the state at the end of a loop that the limit
    of steps cut, and `changed_since_cut` says whether the state has changed since.

    `goal` is the length of the loop over `run.epochs` that the task asks for in place of the
    script's.
    """

    def __init__(self) -> None:
        self.check_replay: Callable[[], None] = lambda: None
        self.stopping: Callable[[], bool] = lambda: False
        self.note_cut: Callable[[], None] = lambda: None
        self.changed_since_cut: Callable[[], bool] = lambda: False
        self.goal = LoopLength()
        self._goal_used = False
        self.resumable = True
        self._stopped_at: dict[str, Any] | None = None
        self.resumed = Position()
        self._replays = False
        self.epochs = 0
        self.max_steps = 0
        self._now = Position()
        self._opened = 0
        self._ended: set[int] = set()
        self._lengths: dict[int, LoopLength] = {}
        self._phase_length = LoopLength()
        self._resumed_after = LoopLength()
        self._limited: set[Position] = set()
        self._cut: Position | None = None
        self._return: dict[str, Any] = {}
        self._started = False
        self._asked = ("", 0)

    @property
    def in_epoch(self) -> bool:
        """Whether the script is in a loop over `run.epochs`."""
        return self._now.epoch >= 0

    @property
    def position(self) -> Position:
        """The position to save with a state now."""
        if self._stopped_at is not None:
            return Position(*(self._stopped_at[name] for name in Position._fields))
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
        """The position, as saved with a state."""
        if self._stopped_at is not None:
            return self._stopped_at
        after = self._ended_length()
        ended = {"ended_epochs": after.epochs, "ended_steps": after.steps}
        return {**self.position._asdict(), **ended, "return": self._returning()}

    def _returning(self) -> dict[str, Any]:
        """Where training continues if a loop that ended at a limit of steps is extended."""
        if not self._replays and self._cut is not None:
            return {**self._return, "changed": self.changed_since_cut()}
        return self._return

    def _ended_length(self) -> LoopLength:
        """The length of the loop that ended just before the position; none inside of a loop."""
        if self._replays:
            return self._resumed_after
        position = self.position
        if position.epoch >= 0 or self._opened > position.loop:
            return LoopLength()
        if position.loop == 0:
            return self._phase_length
        return self._lengths.get(position.loop - 1, LoopLength())

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load the position of a restored state.

        Raises `NotAllowedNow` if the script of this process is already at another position.
        """
        position = Position(**{name: int(saved[name]) for name in Position._fields})
        if self._started and position != self.position:
            raise NotAllowedNow(
                f"the run was rolled back to loop {position.key} of the script, but this process "
                f"is at loop {self.position.key}",
                hint="start this process again; an agent does so automatically",
            )
        self.resumed, self._replays = position, not self._started
        lengths = (int(saved.get(name, 0)) for name in ("ended_epochs", "ended_steps"))
        self._resumed_after = LoopLength(*lengths)
        self._return = dict(saved.get("return", {}))

    def open_loop(self, length: LoopLength) -> tuple[Position, bool]:
        """The position of the loop that the script opens, and whether it is already complete."""
        self.went_on()
        if length.epochs and not self.in_epoch and not self._goal_used:
            self.require_no_goal(f"a loop over data with epochs={length.epochs}")
        place = self._now._replace(loop=self._opened)
        self._lengths[place.loop] = length
        self._opened += 1
        self._started = True
        following = place._replace(loop=place.loop + 1)
        if self._replays and following == self.resumed and length.exceeds(self._resumed_after):
            self.resumed = place
        past = self._replays and place < self.resumed
        self._replay(ends=not past)
        if past:
            self._ended.add(place.loop)
        return place, past

    def step(self) -> None:
        """Note the start of a step: a script without loops over data has reached its position."""
        self._replay(ends=True)

    def _replay(self, *, ends: bool) -> None:
        if self._replays:
            self.check_replay()
            self._replays = not ends

    def handed(self) -> None:
        """Note that a batch was returned: the script may repeat its code from here on."""
        self._asked = ("", 0)

    def agreement_key(self, step: int) -> str:
        """The name of the next agreed value, the same on all workers."""
        place = f"{self.position.key}@{step}"
        asked, count = self._asked
        self._asked = (place, count + 1 if asked == place else 1)
        return f"{place}#{self._asked[1]}"

    def end_loop(self, place: Position, *, complete: bool = True) -> None:
        """Note that the script has left a loop."""
        if not complete:
            self._note_stop()
        if (place.phase, place.epoch) == (self._now.phase, self._now.epoch):
            self._ended.add(place.loop)
            if complete and place in self._limited and self._cut is None:
                self._cut = place
                self.note_cut()

    def limit(self, place: Position) -> None:
        """Note that a loop ends at the limit of steps, before its own end."""
        self._limited.add(place)

    def _note_stop(self) -> None:
        """Keep the position if a stop ends the script here."""
        if self.stopping() and self._stopped_at is None:
            self.resumable = not self.between_loops
            self._stopped_at = self.state_dict()

    def went_on(self) -> None:
        """Note that the script continues after a loop that it left while a stop was requested."""
        if self._stopped_at is not None:
            self.resumable = False

    def run_epochs(
        self, count: int | None, max_steps: int | None, steps: Callable[[], int]
    ) -> Iterator[int]:
        """Iterate over the remaining epochs; `steps` returns the steps of the run."""
        if self._now.epoch >= 0:
            raise NotAllowedNow(
                "a loop over run.epochs is already open", hint="use one such loop at a time"
            )
        if (count is None) == (max_steps is None) or (count or max_steps or 0) < 1:
            raise InvalidArgument(
                f"run.epochs got {count!r} epochs and max_steps={max_steps!r}",
                hint="pass the number of epochs, or max_steps=N",
            )
        count, max_steps = self._wanted(count, max_steps)
        phase, ended = self._now.phase, False
        self._started = True
        self._replay(ends=False)
        self._extend(phase, LoopLength(count or 0, max_steps or 0))
        self._require_ahead(phase, steps())
        self.epochs, self.max_steps = count or 0, max_steps or 0
        epoch = self.resumed.epoch if self.resumed.phase == phase else 0
        epoch = max(epoch, 0)
        ran = self.resumed.phase <= phase
        try:
            while self.resumed.phase <= phase and (
                epoch < count if count is not None else steps() < self.max_steps
            ):
                self._move(Position(phase, epoch))
                yield epoch
                epoch += 1
                # The epoch's code has run: a state saved from now on belongs to the next epoch.
                self._move(Position(phase, epoch))
            ended = True
        finally:
            if not ended:
                self._note_stop()
            self.epochs = self.max_steps = 0
            if ran:
                returning = self._cut or Position(phase, epoch)
                self._return = returning._asdict() if ended and max_steps else {}
            self._move(Position(phase + 1))
            self._phase_length = LoopLength(count or 0, max_steps or 0) if ended else LoopLength()

    def _extend(self, phase: int, length: LoopLength) -> None:
        """Go back to the end of a loop over `run.epochs` that is longer than it was."""
        before, returning = self._resumed_after, self._return
        if self.resumed != Position(phase + 1):
            return
        if not length.exceeds(before):
            if before.steps and "changed" in returning and not returning["changed"]:
                self._cut = Position(*(returning[name] for name in Position._fields))
                self.note_cut()
            return
        if not before.steps:
            self.resumed = Position(phase, before.epochs)
            return
        if not returning or returning.get("changed"):
            raise NotAllowedNow(
                f"the run ended inside an epoch, at max_steps={before.steps}, and the script "
                "changed its state after that (for example with scheduler.step() at the end of the "
                f"epoch), so it cannot be extended to {length.steps or 'more'} steps",
                hint="fork it at an earlier checkpoint, or start a new run from its weights: "
                "run.restore(..., from_=TASK)",
            )
        self.resumed = Position(*(returning[name] for name in Position._fields))

    def _wanted(self, count: int | None, max_steps: int | None) -> tuple[int | None, int | None]:
        """The length of a loop over `run.epochs`: that of the task, or that of the script."""
        epochs, steps = self.goal
        if not epochs and not steps:
            return count, max_steps
        if self._goal_used:
            raise NotAllowedNow(
                f"the task sets {self._goal_text}, but the script loops over run.epochs twice",
                hint="leave out --epochs and --steps, and set the numbers in the script",
            )
        if (count is None) == bool(epochs):
            counts, flag = ("steps", "--steps") if count is None else ("epochs", "--epochs")
            raise InvalidArgument(
                f"the task sets {self._goal_text}, but the script counts {counts} in run.epochs",
                hint=f"use {flag} N in place of it; 0 takes the other one back",
            )
        self._goal_used = True
        return epochs or None, steps or None

    @property
    def _goal_text(self) -> str:
        epochs, steps = self.goal
        return f"--epochs {epochs}" if epochs else f"--steps {steps}"

    def _require_ahead(self, phase: int, steps: int) -> None:
        """Refuse a goal that the run has already passed."""
        epochs, most = self.goal
        begun = self.resumed.epoch + 1 if self.resumed.phase == phase else 0
        if self.resumed == Position(phase + 1):
            begun = self._resumed_after.epochs
        if 0 < epochs < begun or 0 < most < steps:
            done = f"{begun} epochs are begun" if epochs else f"{steps} steps are trained"
            raise InvalidArgument(
                f"the task sets {self._goal_text}, but {done} at the state that it resumes from",
                hint="ask for as many or more, or fork the task at an earlier checkpoint",
            )

    def require_no_goal(self, setter: str) -> None:
        """Raise if the task asks for a length that something other than `run.epochs` sets."""
        if any(self.goal):
            raise InvalidArgument(
                f"the task sets {self._goal_text}, but {setter} sets its own length",
                hint="leave the flag out and change the script, or its --config; a flag needs "
                "`for epoch in run.epochs(N):`",
            )

    def require_goal_used(self) -> None:
        """Raise if the task asks for a length and the script has no loop over `run.epochs`."""
        if any(self.goal) and not self._goal_used:
            raise InvalidArgument(
                f"the task sets {self._goal_text}, but the script has no loop over run.epochs",
                hint="write `for epoch in run.epochs(N):` around the loop, or leave the flag out",
            )

    def _move(self, place: Position) -> None:
        self._now, self._opened, self._ended, self._lengths = place, 0, set(), {}


PEEK_HINT = "to look at a batch without training it, call run.batches(...).peek()"


class PastIteration(Iterator[Any]):
    """A loop that the run had completed before this process started: it has no batches."""

    def __init__(self, place: Position) -> None:
        self._place = place

    def __next__(self) -> Any:
        # Ends a `for` loop silently; a script that calls `next` sees the message.
        raise StopIteration(
            f"loop {self._place.key} of this script was done when this process resumed the run; "
            f"{PEEK_HINT}"
        )


class Loader:
    """An iterable of batches. Made by `run.batches` and `run.loader`.

    Each `for` loop over it is a loop of the run, so one loader can serve every epoch. A loop that
    the run had completed before this process started has no batches. `len` is the number of steps.
    """

    def __init__(
        self,
        open_loop: Callable[[], Iterable[Any] | Position],
        length: Callable[[], int],
        first: Callable[[], Any],
    ) -> None:
        self._open_loop, self._length, self._first = open_loop, length, first
        self._current: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        opened = self._open_loop()
        return PastIteration(opened) if isinstance(opened, Position) else iter(opened)

    def peek(self) -> Any:
        """This worker's first batch of the dataset, to inspect its shapes and types.

        Opens no loop and counts no step; the batch is still trained later.
        """
        return self._first()

    def __next__(self) -> Any:
        if self._current is None:
            self._current = iter(self)
        return next(self._current)

    def __len__(self) -> int:
        return self._length()
