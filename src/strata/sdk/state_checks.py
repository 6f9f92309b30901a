"""Errors instead of silent mistakes with a run's state.

*A restored state is not changed again by code that is run again.* A process that resumes runs its
script from the beginning. Numbers and texts of the state (the learning rate, a scheduler's count)
are compared with what was restored; a difference is an error that names them. Arrays are not
compared, since that would cost a pass over the model.

*A step changes the state.* Arrays of JAX are immutable, so a step makes new ones. If `run.state`
holds the very same arrays after a step, the script has kept the new state in a variable of its own,
and what the run saves and restores is the old one.

*A step that a lost worker ended has changed nothing.* A block that communicates once changes its
state afterwards. One that communicates several times may have changed it in between; then the state
is compared with that of the block's beginning, if the block before it was such a one, too.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from strata.checkpoint.stateful import plain
from strata.checkpoint.tree import flatten
from strata.errors import NotAllowedNow

MAX_NAMED = 3


class StateChecks:
    """The checks of one run. For the training thread."""

    def __init__(self) -> None:
        self._restored: Any = None
        self._arrays: list[Any] = []
        self._begun: str | None = None

    def note_restored(self, state: Any) -> None:
        """Remember what was restored."""
        self._restored = flatten(plain(state)).tree

    def require_unchanged(self, state: Any) -> None:
        """Refuse a state that the script has changed since it was restored."""
        if self._restored is None:
            return
        now = flatten(plain(state)).tree
        changed = list(_changes(self._restored, now, ""))
        if changed:
            more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
            raise NotAllowedNow(
                "the restored state was changed before training went on: "
                + ", ".join(changed[:MAX_NAMED])
                + more,
                hint="this code runs again in a process that resumes: make schedulers before "
                "run.restore, and loop over run.epochs, which skips the epochs that are done",
            )

    def note_step(self, state: Any, *, exact: bool = False) -> None:
        """Remember the arrays that a step begins with, and their content if it is to be `exact`."""
        self._arrays = _immutable(state)
        self._begun = _digest(state) if exact else None

    def is_unchanged(self, state: Any) -> bool:
        """Whether the state is known to be that of the step's beginning."""
        return self._begun is not None and self._begun == _digest(state)

    def require_changed(self, state: Any) -> None:
        """Refuse a step after which the state holds the arrays of before."""
        before, self._arrays = self._arrays, []
        if not before:
            return
        now = _immutable(state)
        if len(now) == len(before) and all(a is b for a, b in zip(before, now, strict=True)):
            raise NotAllowedNow(
                "run.state did not change in this step: its JAX arrays are those of before",
                hint="keep the state in the run: run.state = update(run.state, batch)",
            )


def _immutable(state: Any) -> list[Any]:
    """The arrays of JAX in a state; none if it holds other arrays too, which change in place."""
    jax = sys.modules.get("jax")
    if jax is None:
        return []
    leaves = jax.tree_util.tree_leaves(state)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    others = [leaf for leaf in leaves if not isinstance(leaf, jax.Array | int | float | str)]
    return [] if others else arrays


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
    """The values that differ, each as `path: before to now`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() | now.keys():
            where = f"{path}.{key}" if path else str(key)
            yield from _changes(before.get(key), now.get(key), where)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes(old, new, f"{path}.{at}")
    elif before != now:
        yield f"{path} from {before!r:.40} to {now!r:.40}"
