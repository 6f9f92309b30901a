"""Checks that turn silent mistakes with a run's state into errors.

*Repeated code must not change a restored state.* A process that resumes runs its script from the
beginning. Numbers and strings of the state (the learning rate, a scheduler's count) are compared
with the restored ones; a difference is an error that names them. Arrays are not compared, since
that would cost a pass over the model.

*A step must change the state.* JAX arrays are immutable, so a step makes new ones. If `run.state`
holds the same arrays after a step, the script has kept the new state in its own variable, and the
run would save and restore the old one.

*Code after a loop that a limit of steps cut must not change the state, if the run is extended.* The
state at the end of that loop is compared, as a digest, with the state that is saved later.

*A step that did not reach its end must have changed nothing.* If a lost worker interrupted it, a
block that communicates once has changed nothing yet: scripts change the state afterwards. A block
that communicates several times may have changed it in between, and so may one that an error or
Ctrl-C ended. Then the state is compared with that at the start of the block, if its digest is
known: if the previous block communicated several times, and for small states in an interactive
session, where errors are part of the work. A state that may be partly changed is neither trained
nor saved.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from strata.checkpoint.state.state_tree import flatten
from strata.checkpoint.state.stateful import plain
from strata.errors import NotAllowedNow
from strata.sdk.interrupts import is_interactive

MAX_NAMED = 3

SMALL_BYTES = 16_000_000
"""The largest state of which a digest may be taken in every step of an interactive session."""


class StateChecks:
    """The checks of one run. For the training thread."""

    def __init__(self) -> None:
        self._restored: Any = None
        self._arrays: list[Any] = []
        self._begun: str | None = None
        self._cut = ""
        self.partly_changed = ""

    def note_restored(self, state: Any) -> None:
        """Remember the restored state, which is whole."""
        self.partly_changed = ""
        self._restored = flatten(plain(state)).tree

    def require_unchanged(self, state: Any) -> None:
        """Raise if the script has changed the state since it was restored."""
        if self._restored is None:
            return
        now = flatten(plain(state)).tree
        changed = list(_changes(self._restored, now, ""))
        if changed:
            more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
            raise NotAllowedNow(
                "the script changed the restored state before training resumed: "
                + ", ".join(changed[:MAX_NAMED])
                + more,
                hint="this code runs again in a process that resumes: create schedulers before "
                "run.restore, and loop over run.epochs, which skips completed epochs",
            )

    def note_step(self, state: Any, *, exact: bool = False) -> None:
        """Remember the arrays at the start of a step, and a digest of them if `exact`."""
        self.require_whole()
        self._arrays = _immutable(state)
        exact = exact or (is_interactive() and _is_small(state))
        self._begun = _digest(state) if exact else None

    def note_cut(self, state: Any) -> None:
        """Remember a digest of the state at the end of a loop that a limit of steps cut."""
        self._cut = _digest(state)

    def changed_since_cut(self, state: Any) -> bool:
        """Whether the state differs from that at the end of the loop that was cut."""
        return self._cut != _digest(state)

    def is_unchanged(self, state: Any) -> bool:
        """Whether the state is known to be that at the start of the step."""
        return self._begun is not None and self._begun == _digest(state)

    def require_whole(self) -> None:
        """Raise if a step that did not reach its end may have changed a part of the state."""
        if self.partly_changed:
            raise NotAllowedNow(
                f"the state may be partly changed: {self.partly_changed}",
                hint="start this process (in a notebook, the kernel) again: it resumes from the "
                "newest checkpoint",
            )

    def require_changed(self, state: Any) -> None:
        """Raise if the state holds the same JAX arrays as before the step."""
        before, self._arrays = self._arrays, []
        if not before:
            return
        now = _immutable(state)
        if len(now) == len(before) and all(a is b for a, b in zip(before, now, strict=True)):
            raise NotAllowedNow(
                "run.state did not change in this step: it holds the same JAX arrays as before",
                hint="assign the new state to the run: run.state = update(run.state, batch)",
            )


def _immutable(state: Any) -> list[Any]:
    """The JAX arrays in a state; none if it also holds arrays that change in place."""
    jax = sys.modules.get("jax")
    if jax is None:
        return []
    leaves = jax.tree_util.tree_leaves(state)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    others = [leaf for leaf in leaves if not isinstance(leaf, jax.Array | int | float | str)]
    return [] if others else arrays


def _is_small(state: Any) -> bool:
    sources = flatten(plain(state)).sources.values()
    return sum(source.size_bytes for source in sources) <= SMALL_BYTES


def _digest(state: Any) -> str:
    """A digest of everything in a state."""
    flat = flatten(plain(state))
    found = xxhash.xxh3_128(repr(flat.tree).encode())
    for name, source in flat.sources.items():
        image = source.flat()
        if image is None:
            image = np.empty(source.size_bytes, np.uint8)
            source.copy_into(image)
        found.update(name.encode())
        found.update(image.data)
    return found.hexdigest()


def _changes(before: Any, now: Any, path: str) -> Iterator[str]:
    """The values that differ, each as `path from before to now`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() | now.keys():
            where = f"{path}.{key}" if path else str(key)
            yield from _changes(before.get(key), now.get(key), where)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes(old, new, f"{path}.{at}")
    elif before != now:
        yield f"{path} from {before!r:.40} to {now!r:.40}"
