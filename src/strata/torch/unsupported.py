"""Errors for what a run does not support in Lightning and other frameworks."""

from collections.abc import Callable, Mapping
from typing import Any

from strata.errors import InvalidArgument, NotAllowedNow


def require_supported(trainer: Any) -> None:
    """Raise for what cannot be resumed exactly, with its name."""
    plateau_by_step = any(
        each.reduce_on_plateau and each.interval == "step" for each in trainer.lr_scheduler_configs
    )
    refused = {
        "manual optimization": not trainer.lightning_module.automatic_optimization,
        "several training dataloaders": len(trainer.fit_loop._combined_loader.flattened) != 1,
        "ReduceLROnPlateau with interval='step'": plateau_by_step,
    }
    for name, given in refused.items():
        if given:
            raise refusal(name)


def require_resumable_monitors(trainer: Any) -> None:
    """Raise for a monitor of a metric that is averaged over an epoch of training.

    Each worker has its own part of the average, so that of a lost worker is lost with it.
    """
    metas = [each.meta for each in trainer._results.result_metrics]
    averaged = {each.name for each in metas if each.on_epoch}
    averaged |= {each.forked_name(on_step=False) for each in metas if each.on_epoch}
    monitors = [(type(each.scheduler), each.monitor) for each in trainer.lr_scheduler_configs]
    monitors += [(type(each), getattr(each, "monitor", None)) for each in trainer.callbacks]
    for kind, monitored in monitors:
        if monitored in averaged:
            raise InvalidArgument(
                f"{kind.__name__} monitors {monitored!r}, which training_step logs with "
                "on_epoch=True: after a recovery it would cover a part of the epoch",
                hint="monitor a metric of the validation",
            )


def refusal(what: str) -> InvalidArgument:
    """An error that names what cannot be resumed."""
    return InvalidArgument(
        f"LightningStrategy does not support {what}: it could not resume exactly",
        hint="give a torch DataLoader over a map-style dataset and let Lightning add the sampler, "
        "or write the loop with run.step()",
    )


def refuse_methods(kind: type, refused: Mapping[str, str]) -> None:
    """Make methods and properties of a class raise; `refused` has an alternative for each."""
    for name, instead in refused.items():
        inherited = getattr(kind, name, None)
        if inherited is None:
            continue  # this version of the framework does not have it
        raising = _raising(f"{kind.__name__}.{name}", instead)
        replaced = property(raising) if isinstance(inherited, property) else raising
        setattr(kind, name, replaced)


def refuse_options(kind: str, given: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    """Raise if one of the options was given; `refused` has an alternative for each."""
    for name, instead in refused.items():
        if given.get(name):
            raise InvalidArgument(
                f"{kind} under Strata does not support {name}={given[name]!r:.60}", hint=instead
            )


def _raising(name: str, instead: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotAllowedNow(f"{name} does not know the workers of the run", hint=instead)

    return refused
