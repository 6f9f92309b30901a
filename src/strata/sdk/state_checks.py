"""Errors instead of silent mistakes with a run's state.

*A restored state is not changed again by code that is run again.* A process that resumes runs its
script from the beginning. Numbers and texts of the state (the learning rate, a scheduler's count)
are compared with what was restored; a difference is an error that names them. Arrays are not
compared, since that would cost a pass over the model.

*A step changes the state.* Arrays of JAX are immutable, so a step makes new ones. If `run.state`
holds the very same arrays after a step, the script has kept the new state in a variable of its own,
and what the run saves and restores is the old one.
"""

import sys
from collections.abc import Iterator
from typing import Any

from strata.checkpoint.stateful import plain
from strata.checkpoint.tree import flatten
from strata.errors import NotAllowedNow

MAX_NAMED = 3


class StateChecks:
    """The checks of one run. For the training thread."""

    def __init__(self) -> None:
        self._restored: Any = None
        self._arrays: list[Any] = []

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

    def note_step(self, state: Any) -> None:
        """Remember the arrays that a step begins with."""
        self._arrays = _immutable(state)

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
