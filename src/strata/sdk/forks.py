"""What a fork leaves behind: threads and connections stay with the parent.

A child made by `os.fork` (a data loader's worker, for example) has a copy of every object here but
none of the threads that serve it, and a lock may be held by a thread that is gone. So everything
that depends on them is told, in the child, before any other code runs there.
"""

import os
import weakref
from typing import Protocol

INERT = "this process was forked from the one that joined, whose session it cannot use"
INERT_HINT = "use the run in the parent only; a child that trains joins by itself, after the fork"


class Forkable(Protocol):
    """Something that must not go on in a forked child."""

    def became_child(self) -> None:
        """Called in the child, in its only thread."""


_known: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def tell(thing: Forkable) -> None:
    """Has `thing` told when it finds itself in a child."""
    _known.add(thing)


def _after_fork() -> None:
    for thing in list(_known):
        thing.became_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
