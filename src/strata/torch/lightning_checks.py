"""What a Lightning Trainer is refused, since it could not be resumed exactly."""

from typing import Any

from strata.errors import InvalidArgument


def require_supported(trainer: Any) -> None:
    """Refuse what cannot be resumed exactly, by name."""
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
    """Refuse a monitor of a metric that is averaged over an epoch of training.

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
