"""Local steps on a module: `strata.LocalSteps`, with the weights in the module.

    local = strata.torch.LocalSteps(run, model, steps=16)
    run.restore({"model": model, "outer": local})

The outer optimizer updates the trained parameters. Running statistics (the floating-point buffers
of batch norms) are averaged. Everything else stays local to each worker.
"""

from itertools import chain

import torch

from strata.sdk.run import Run
from strata.sdk.steps.local_steps import LocalSteps as ArrayLocalSteps
from strata.sdk.steps.round_updates import Vector


class ModuleWeights:
    """The weights of a module as one vector, on any device."""

    def __init__(self, module: torch.nn.Module) -> None:
        learned = [each for each in module.parameters() if each.requires_grad]
        averaged = [each for each in module.buffers() if each.is_floating_point()]
        self.exact = sum(each.numel() for each in averaged)
        self._tensors: list[torch.Tensor] = [*chain(learned, averaged)]

    def read(self) -> Vector:
        """A copy of all values."""
        parts = [each.detach().reshape(-1).float().cpu() for each in self._tensors]
        vector: Vector = torch.cat(parts).numpy()
        return vector

    def write(self, vector: Vector) -> None:
        """Set all values, in place."""
        sizes = [each.numel() for each in self._tensors]
        for each, part in zip(self._tensors, torch.from_numpy(vector).split(sizes), strict=True):
            each.detach().copy_(part.view_as(each))


class LocalSteps(ArrayLocalSteps):
    """The rounds of one worker that trains a module; see `strata.LocalSteps`."""

    def __init__(
        self,
        run: Run,
        module: torch.nn.Module,
        steps: int,
        *,
        rate: float = 0.7,
        momentum: float = 0.9,
        keep: float = 1.0,
    ) -> None:
        weights = ModuleWeights(module)
        super().__init__(run, weights, steps, rate=rate, momentum=momentum, keep=keep)
