"""PyTorch under Strata: `import strata.torch`. torch itself is imported only where it is used."""

from importlib import import_module
from typing import TYPE_CHECKING

from strata.torch import fork_guard as fork_guard

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
    from strata.data.torch.loader_adapter import StepDataset, StepSampler, loader
    from strata.data.torch.loader_engine import Loading
    from strata.torch.accelerate import Accelerator
    from strata.torch.data_parallel import data_parallel
    from strata.torch.device_mesh import Mesh
    from strata.torch.fabric import Fabric
    from strata.torch.hf_trainer import train
    from strata.torch.lightning import LightningStrategy
    from strata.torch.module_local_steps import LocalSteps
    from strata.torch.process_group import Group

_HOMES = {
    "Accelerator": "strata.torch.accelerate",
    "Fabric": "strata.torch.fabric",
    "Group": "strata.torch.process_group",
    "LightningStrategy": "strata.torch.lightning",
    "Loading": "strata.data.torch.loader_engine",
    "LocalSteps": "strata.torch.module_local_steps",
    "Mesh": "strata.torch.device_mesh",
    "StepDataset": "strata.data.torch.loader_adapter",
    "StepSampler": "strata.data.torch.loader_adapter",
    "data_parallel": "strata.torch.data_parallel",
    "loader": "strata.data.torch.loader_adapter",
    "train": "strata.torch.hf_trainer",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
