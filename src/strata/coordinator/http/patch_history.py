"""The newest patches of the live view, numbered, and the pieces that large ones are cut into.

A reader that has seen the patch of a number is given those after it. The patches of the last look
are always kept, however large they are: a reader that was up to date before it stays so. Older ones
are kept within a bound; a reader that lags behind them is given everything anew.

Rows are put in place by their id, so a large patch can be cut into several that are applied one
after the other. A piece is sent when the reader has taken the one before, so no reader has more
than a piece on its way.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias

MAX_PATCHES = 256
MAX_BYTES = 4 * 1024 * 1024
PIECE_ROWS = 500

Lists: TypeAlias = dict[str, list[Any]]


class PatchHistory:
    """Encoded patches; `number` is that of the newest."""

    def __init__(self, max_patches: int = MAX_PATCHES, max_bytes: int = MAX_BYTES) -> None:
        self.number = 0
        self._max_patches = max_patches
        self._max_bytes = max_bytes
        self._patches: deque[bytes] = deque()
        self._bytes = 0

    def keep(self, patches: list[bytes]) -> None:
        """Add the patches of a look; each has the next number."""
        self._patches.extend(patches)
        self._bytes += sum(map(len, patches))
        self.number += len(patches)
        while len(self._patches) > len(patches) and self._is_full():
            self._bytes -= len(self._patches.popleft())

    def after(self, number: int) -> list[bytes] | None:
        """The patches after the one of a number; None if they are not all here."""
        first = number - self.number + len(self._patches)
        if not 0 <= first <= len(self._patches):
            return None
        return list(islice(self._patches, first, None))

    def _is_full(self) -> bool:
        return len(self._patches) > self._max_patches or self._bytes > self._max_bytes


def pieces(lists: Mapping[str, list[Any]], piece_rows: int = PIECE_ROWS) -> list[Lists]:
    """Lists of rows by name, cut into parts of at most so many rows; one part if there are none."""
    parts: list[Lists] = [{}]
    room = piece_rows
    for name, rows in lists.items():
        at = 0
        while at < len(rows):
            if not room:
                parts.append({})
                room = piece_rows
            taken = rows[at : at + room]
            parts[-1][name] = taken
            at += len(taken)
            room -= len(taken)
    return parts
