"""Code written for Weights & Biases, recorded by Strata: `from strata.compat import wandb`.

    wandb.init(project="digits", config={"lr": 0.1})
    for batch in loader:
        wandb.log({"loss": train_step(batch)})
    wandb.finish()

`init` uses the run that `strata.join()` has opened in this process, else joins one. Inside the
block of `run.step()` values belong to that step, as with `step.log`. Elsewhere they are counted as
W&B counts them: each `log` is a step, unless `commit=False` or `step=` says otherwise. Numbers,
images, texts and histograms are recorded; nested names are joined by `/`. Anything else is an
error, because a value that is accepted and not recorded would be lost without a word.
"""

import logging
from collections.abc import Mapping
from typing import Any, SupportsFloat, cast

import strata
from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.record.logged_media import Loggable, Media
from strata.sdk.run import Run, join, open_run

_warnings = logging.getLogger(__name__)

WITHOUT_EFFECT = frozenset(
    {"entity", "project", "group", "job_type", "tags", "notes", "dir", "id", "resume", "reinit"}
    | {"settings", "save_code", "monitor_gym", "sync_tensorboard", "anonymous", "force", "magic"}
)
OFFERED = "init, log, config, run, finish, define_metric, watch, Image and Histogram"


class Config(dict[str, Any]):
    """`wandb.config`: values by key or by attribute; each change is recorded."""

    def __init__(self, owner: "WandbRun | None" = None) -> None:
        super().__init__()
        self.__dict__["_owner"] = owner

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self.update({name: value})

    def __setitem__(self, name: str, value: object) -> None:
        self.update({name: value})

    def update(self, *given: Any, allow_val_change: bool = True, **named: Any) -> None:
        """Add values, and record them."""
        super().update(*given, **named)
        if (owner := self.__dict__["_owner"]) is not None:
            owner.recording.log_config(self)


class Summary(dict[str, Any]):
    """`run.summary`: the last value of each metric; values that are set are recorded."""

    def __init__(self, owner: "WandbRun") -> None:
        super().__init__()
        self._owner = owner

    def __setitem__(self, name: str, value: Any) -> None:
        self._owner.log({name: value}, commit=False)
        self._owner.flush()

    def update(self, *given: Any, **named: Any) -> None:
        """Set values."""
        for name, value in dict(*given, **named).items():
            self[name] = value

    def note(self, values: Mapping[str, Any]) -> None:
        """Keep the last values that were logged."""
        super().update(values)


class WandbRun:
    """`wandb.run`: a run of Strata with the methods of W&B's."""

    def __init__(self, recording: Run, *, owned: bool, name: str) -> None:
        self.recording = recording
        self.name = name or recording.task_id
        self.id = recording.task_id
        self.config = Config(self)
        self.summary = Summary(self)
        self._owned = owned
        self._step = 0
        self._pending: dict[str, Loggable] = {}

    @property
    def step(self) -> int:
        """The step of the next values."""
        return self._step

    def log(
        self,
        data: Mapping[str, Any],
        step: int | None = None,
        commit: bool | None = None,
        sync: bool | None = None,
    ) -> None:
        """Record values: of the open `run.step()`, else of a step as W&B counts them."""
        values = dict(_loggable(data, ""))
        self.summary.note(
            {key: value for key, value in values.items() if not isinstance(value, Media)}
        )
        if (present := self.recording.present_step) is not None:
            present.log(values)
            return
        if step is not None and step < self._step:
            raise InvalidArgument(
                f"step {step} is logged after step {self._step}",
                hint="steps of wandb.log must not decrease",
            )
        if step is not None and step > self._step:
            self.flush()
            self._step = step
        self._pending |= values
        if commit or (commit is None and step is None):
            self.flush()
            self._step += 1

    def flush(self) -> None:
        """Record what was logged without `commit`."""
        if self._pending:
            values, self._pending = self._pending, {}
            self.recording.log_at(self._step, values)

    def define_metric(self, *_: object, **__: object) -> None:
        """Accepted; every metric can be shown over steps, time, samples or tokens."""

    def watch(self, *_: object, **__: object) -> None:
        """Accepted; gradients and parameters are not recorded, and a warning says so."""
        _warnings.warning("wandb.watch records nothing: log strata.Histogram(gradient) instead")

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Record the rest; leave the run if `init` has joined it."""
        global run, config
        self.flush()
        if self._owned:
            failed = bool(exit_code)
            self.recording.leave("failed" if failed else "done", f"exit code {exit_code}" * failed)
        run, config = None, Config()

    def __enter__(self) -> "WandbRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish(1 if kind is not None else 0)


run: WandbRun | None = None
config = Config()


def init(
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    mode: str | None = None,
    **given: object,
) -> WandbRun:
    """Start to record: in the open run of this process, else in one that is joined for it."""
    if mode not in (None, "online", "offline", "shared"):
        raise InvalidArgument(
            f"wandb.init(mode={mode!r}) would record nothing",
            hint="leave `mode` out; Strata records on this machine",
        )
    if unknown := given.keys() - WITHOUT_EFFECT:
        raise InvalidArgument(
            f"wandb.init has no argument {min(unknown)!r} here",
            hint=f"it takes config and name; without effect: {', '.join(sorted(WITHOUT_EFFECT))}",
        )
    started = run or _begin(name or "")
    if config:
        started.config.update(config)
    return started


def _begin(name: str) -> WandbRun:
    global run, config
    opened = open_run()
    run = WandbRun(opened or join(), owned=opened is None, name=name)
    config = run.config
    return run


def log(
    data: Mapping[str, Any],
    step: int | None = None,
    commit: bool | None = None,
    sync: bool | None = None,
) -> None:
    """`wandb.run.log`."""
    _started("log").log(data, step, commit)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """`wandb.run.finish`; without effect if nothing was started."""
    if run is not None:
        run.finish(exit_code)


def define_metric(*given: object, **named: object) -> None:
    """`wandb.run.define_metric`."""
    _started("define_metric").define_metric(*given, **named)


def watch(*given: object, **named: object) -> None:
    """`wandb.run.watch`."""
    _started("watch").watch(*given, **named)


def Image(data_or_path: Any, caption: str | None = None) -> strata.Image:
    """`strata.Image`."""
    return strata.Image(data_or_path, caption=caption or "")


def Histogram(
    sequence: Any = None, np_histogram: tuple[Any, Any] | None = None, num_bins: int = 64
) -> strata.Histogram:
    """`strata.Histogram`, of values or of counts and edges."""
    if np_histogram is not None:
        return strata.Histogram.of(*np_histogram)
    return strata.Histogram(sequence, bins=num_bins)


def _started(call: str) -> WandbRun:
    if run is None:
        raise NotAllowedNow(f"wandb.{call} before wandb.init", hint="call wandb.init() first")
    return run


def _loggable(data: Mapping[str, Any], above: str) -> "list[tuple[str, Loggable]]":
    """Values by flat names; raises for what cannot be recorded."""
    found: list[tuple[str, Loggable]] = []
    for key, value in data.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found += _loggable(value, f"{name}/")
        elif isinstance(value, str):
            found.append((name, strata.Text(value)))
        elif isinstance(value, list | tuple) and value and all(isinstance(v, Media) for v in value):
            found += [(f"{name}/{at}", each) for at, each in enumerate(value)]
        else:
            found.append((name, cast(SupportsFloat, value)))
    return found


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"strata.compat.wandb has no {name!r}; it offers {OFFERED}. "
        "Use strata.Image, strata.Text and strata.Histogram for media"
    )


__all__ = [
    "Histogram",
    "Image",
    "config",
    "define_metric",
    "finish",
    "init",
    "log",
    "run",
    "watch",
]
