"""A copy of what a step block changes before its gradients are averaged, so that it can be undone.

The forward pass changes the random generators (dropout) and the buffers of the module (running
statistics of batch norms). When a worker is lost, the same block runs again, and must begin with
the same values. Floating-point buffers are always copied: batch norm changes its statistics without
a version change. Of the others (masks, position numbers) only those are copied that have changed in
some block since the first.

Parameters are not copied: once they have changed, the block cannot be undone.
"""

import torch

from strata.checkpoint.state.random_generators import random_state, set_random_state
from strata.torch.module_tensors import ModuleTensors


class BlockState:
    """The state of a module's step block. `optimized` is set when an optimizer has stepped."""

    def __init__(self, contents: ModuleTensors) -> None:
        self._contents = contents
        self.optimized = False
        self._first = True
        self._buffers: list[torch.Tensor] = []
        self._owners: list[tuple[torch.nn.Module, str]] = []
        self._changing: set[int] = set()
        self._silent: set[int] = set()
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._versions: list[int] = []
        self._dirty: set[int] = set()
        self._copies: dict[int, torch.Tensor] = {}

    def capture(self) -> None:
        """Copy the state at the beginning of a block."""
        self._begin_empty()
        self.optimized = False
        self._random = random_state()
        buffers = self._contents.buffers
        if buffers is not self._buffers:
            self._buffers, self._owners, self._first = buffers, self._contents.owners, True
            self._silent = {n for n, each in enumerate(buffers) if not _leaves_trace(each)}
            self._changing = set(self._silent)
        self._versions = [each._version for each in buffers]
        copied = range(len(buffers)) if self._first else self._changing
        self._copies = {index: buffers[index].detach().clone() for index in copied}
        self._parameter_versions = self._parameters_now()
        self._first = False

    @property
    def updated(self) -> bool:
        """Whether the parameters have changed in this block."""
        return self.optimized or self._parameters_now() != self._parameter_versions

    def note_buffers(self) -> None:
        """Remember which buffers the block has changed so far."""
        versions = [each._version for each in self._buffers]
        pairs = enumerate(zip(versions, self._versions, strict=True))
        self._dirty |= self._silent
        self._dirty |= {index for index, (now, before) in pairs if now != before}
        self._changing |= self._dirty
        self._versions = versions

    def forget_copies(self) -> None:
        """Ignore the last change of the buffers: they were overwritten by equal values."""
        self._versions = [each._version for each in self._buffers]

    def forget_update(self) -> None:
        """Ignore the last optimizer step: it has skipped its update."""
        self._parameter_versions = self._parameters_now()

    def restore(self) -> bool:
        """Undo the block; False if parameters or a buffer cannot be restored."""
        set_random_state(self._random)
        self.note_buffers()
        for (owner, name), buffer in zip(self._owners, self._buffers, strict=True):
            owner._buffers[name] = buffer  # a script may assign a new buffer instead of changing it
        with torch.no_grad():
            for index in self._dirty & self._copies.keys():
                self._buffers[index].copy_(self._copies[index])
        return not self.updated and self._dirty <= self._copies.keys()

    def _parameters_now(self) -> int:
        return sum(each._version for each in self._contents.parameters)


def _leaves_trace(buffer: torch.Tensor) -> bool:
    """Whether every change of a buffer raises its version."""
    return not (buffer.is_floating_point() or buffer.is_complex())
