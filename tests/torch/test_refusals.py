"""Guards what the adapters of accelerate and Fabric refuse by name."""

import pytest

from strata.errors import InvalidArgument, NotAllowedNow

pytest.importorskip("torch")


@pytest.mark.parametrize("method", ["gather", "prepare_data_loader", "save_state", "save_model"])
def test_accelerator_refuses_methods_that_need_the_other_workers(method):
    pytest.importorskip("accelerate")
    from strata.torch import Accelerator

    with pytest.raises(NotAllowedNow, match=f"Accelerator.{method} does not know the workers"):
        getattr(Accelerator, method)(None)


def test_accelerator_refuses_other_ways_to_distribute():
    pytest.importorskip("accelerate")
    from strata.torch import Accelerator

    with pytest.raises(InvalidArgument, match="does not support fsdp_plugin="):
        Accelerator(None, fsdp_plugin=object())


@pytest.mark.parametrize("method", ["setup_dataloaders", "all_reduce", "broadcast", "barrier"])
def test_fabric_refuses_methods_that_need_the_other_workers(method):
    pytest.importorskip("lightning")
    from strata.torch import Fabric

    with pytest.raises(NotAllowedNow, match=f"Fabric.{method} does not know the workers"):
        getattr(Fabric, method)(None)


@pytest.mark.parametrize(
    ("option", "value"), [("strategy", "ddp"), ("devices", 2), ("loggers", ["csv"])]
)
def test_fabric_refuses_other_ways_to_distribute(option, value):
    pytest.importorskip("lightning")
    from strata.torch import Fabric

    with pytest.raises(InvalidArgument, match=f"Fabric under Strata does not support {option}="):
        Fabric(None, accelerator="cpu", **{option: value})
