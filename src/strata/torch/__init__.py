"""PyTorch under Strata: `import strata.torch`. torch itself is needed only where it is used."""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Accelerator",
    "Fabric",
    "Group",
    "LightningStrategy",
    "Loading",
    "LocalSteps",
    "Mesh",
    "StepDataset",
    "StepSampler",
    "data_parallel",
    "loader",
    "train",
]

if TYPE_CHECKING:
    from strata.data.torch_adapter import StepDataset, StepSampler, loader
    from strata.data.torch_engine import Loading
    from strata.torch.accelerate import Accelerator
    from strata.torch.fabric import Fabric
    from strata.torch.group import Group
    from strata.torch.huggingface import train
    from strata.torch.lightning import LightningStrategy
    from strata.torch.local_steps import LocalSteps
    from strata.torch.mesh import Mesh
    from strata.torch.parallel import data_parallel

_HOMES = {
    "Accelerator": "strata.torch.accelerate",
    "Fabric": "strata.torch.fabric",
    "Group": "strata.torch.group",
    "LightningStrategy": "strata.torch.lightning",
    "Loading": "strata.data.torch_engine",
    "LocalSteps": "strata.torch.local_steps",
    "Mesh": "strata.torch.mesh",
    "StepDataset": "strata.data.torch_adapter",
    "StepSampler": "strata.data.torch_adapter",
    "data_parallel": "strata.torch.parallel",
    "loader": "strata.data.torch_adapter",
    "train": "strata.torch.huggingface",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
