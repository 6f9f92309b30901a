"""The GPUs of an agent's slots, and which slots a worker may get.

A slot with an excluded GPU is given to no worker. The coordinator counts slots in the same way, but
a GPU may be excluded after workers were placed here: then one of them finds no slot and is reported
as not started.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count

from strata.sdk.record.gpu_cards import CardId, identified, seen_as
from strata.wire.v1 import coordinator_pb2 as pb


class SlotGpus:
    """The GPUs of each slot by name (index or UUID); none without GPUs."""

    def __init__(self, names: Sequence[Sequence[str]] = ()) -> None:
        self._names = [list(slot) for slot in names] if any(names) else []
        known = {name: identified(name) for slot in self._names for name in slot}
        self._cards: dict[str, CardId] = known
        self._excluded: frozenset[str] = frozenset()

    def exclude(self, keys: Iterable[str]) -> None:
        """Set the GPUs that no worker gets."""
        self._excluded = frozenset(keys)

    def offered(self) -> list[pb.SlotGpus]:
        """The GPUs of each slot for the coordinator."""
        return [
            pb.SlotGpus(gpus=[self._message(self._cards[name]) for name in slot])
            for slot in self._names
        ]

    def of(self, slot: int) -> list[str]:
        """The names of the GPUs of a slot; a further slot shares those of an earlier one."""
        return self._names[slot % len(self._names)] if self._names else []

    def keys(self, slot: int) -> list[str]:
        """The GPUs of a slot as the coordinator knows them."""
        return [self._cards[name].key for name in self.of(slot)]

    def environment(self, slot: int) -> dict[str, str]:
        """The variables that restrict a worker to the GPUs of its slot."""
        return seen_as(self.of(slot))

    def usable(self) -> list[str]:
        """The names of all GPUs that are not excluded."""
        names = dict.fromkeys(name for slot in self._names for name in slot)
        return [name for name in names if self._cards[name].key not in self._excluded]

    def key_of(self, name: str) -> str:
        """A GPU as the coordinator knows it; empty if it is none of them."""
        return self._cards[name].key if name in self._cards else ""

    def free(self, taken: Collection[int], running: int) -> int | None:
        """A slot for a new worker; None if all without an excluded GPU are in use.

        `taken` are the slots of all processes, `running` of which are not ending: a further worker
        may share the GPUs of one that ends.
        """
        usable = [slot for slot in range(len(self._names)) if self._is_usable(slot)]
        if self._excluded and self._names and running >= len(usable):
            return None
        return next(slot for slot in count() if slot not in taken and self._is_usable(slot))

    def _is_usable(self, slot: int) -> bool:
        return self._excluded.isdisjoint(self.keys(slot))

    @staticmethod
    def _message(card: CardId) -> pb.Gpu:
        return pb.Gpu(index=card.index, uuid=card.uuid)
