"""Code written for Weights & Biases, recorded by Strata: `from strata.compat import wandb`.

    wandb.init(project="digits", config={"lr": 0.1})
    for batch in loader:
        wandb.log({"loss": train_step(batch)})
    wandb.finish()

`init` uses the run that `strata.join()` has opened in this process, else joins one. Inside the
block of `run.step()` values belong to that step, as with `step.log`. Elsewhere they are counted as
W&B counts them: each `log` is a step, unless `commit=False` or `step=` says otherwise; unlike
there, a lower step is recorded too. Numbers, images, texts, tables and histograms are recorded at
once; nested names are joined by `/`. Anything else is an error, because a value that is accepted
and not recorded would be lost without an error. `mode="disabled"` records nothing, as the script
asks.
"""

import logging
import secrets
import string
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from strata.compat.loggable_values import Table, loggable
from strata.compat.loggable_values import histogram as Histogram
from strata.compat.loggable_values import image as Image
from strata.compat.run_values import Config, Summary, mapping_of
from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.record.logged_media import Loggable, Media
from strata.sdk.run import Run, join, open_run

_warnings = logging.getLogger(__name__)

WITHOUT_EFFECT = frozenset(
    {"entity", "project", "group", "job_type", "tags", "notes", "dir", "id", "resume", "reinit"}
    | {"settings", "save_code", "anonymous", "force", "magic", "allow_val_change"}
)
OTHER_RECORDS = ("sync_tensorboard", "monitor_gym")
MODES = (None, "online", "offline", "shared", "disabled")
OFFERED = (
    "init, log, config, summary, run, finish, define_metric, watch, login, Settings, alert, Image, "
    "Histogram and Table"
)
HINT = "Use strata.Image, strata.Text and strata.Histogram for media, run.save() for checkpoints"


class WandbRun:
    """`wandb.run`: a run of Strata with the methods of W&B's; it records nothing if disabled."""

    def __init__(self, recording: Run | None, *, owned: bool, name: str) -> None:
        self._recording = recording
        self.id = recording.task_id if recording is not None else "disabled"
        self.name = name or self.id
        self.project = self.entity = self.group = self.notes = ""
        self.tags: tuple[str, ...] = ()
        self.url: str | None = None
        self.config = Config(self._record_config)
        self.summary = Summary(self._record)
        self.disabled = recording is None
        self._owned = owned
        self._step = 0

    @property
    def recording(self) -> Run:
        """The run of Strata."""
        if self._recording is None:
            raise NotAllowedNow(
                "wandb.init(mode='disabled') opened no run of Strata", hint="leave `mode` out"
            )
        return self._recording

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
        within = self._recording is not None and self._recording.present_step is not None
        lower = step is not None and step < self._step
        if step is not None and not lower:
            self._step = step
        values = self._record(data, step if lower else None)
        for name, value in values.items():
            if not isinstance(value, Media):
                self.summary.note(name, value)
        if not within and (commit or (commit is None and step is None)):
            self._step += 1

    def _record(self, data: Mapping[str, Any], step: int | None = None) -> dict[str, Loggable]:
        values = dict(loggable(data))
        if self._recording is None:
            return values
        if (present := self._recording.present_step) is not None:
            present.log(values)
        elif values:
            self._recording.log_at(self._step if step is None else step, values)
        return values

    def _record_config(self, config: Mapping[str, Any]) -> None:
        if self._recording is not None:
            self._recording.log_config(config)

    def define_metric(
        self, name: str, step_metric: Any = None, summary: str | None = None, **_: object
    ) -> None:
        """Set what the summary keeps; every metric can be shown over steps, time, samples or
        tokens."""
        if summary is not None:
            self.summary.define(name, summary)

    def watch(self, *_: object, **__: object) -> None:
        """Accepted; gradients and parameters are not recorded, and a warning says so."""
        _warnings.warning("wandb.watch records nothing: log strata.Histogram(gradient) instead")

    def unwatch(self, *_: object) -> None:
        """Accepted; nothing was watched."""

    def alert(self, title: str, text: str = "", **_: object) -> None:
        """Record a text, and log it as a warning."""
        self._record({"alert": f"{title}\n{text}"})
        _warnings.warning("%s: %s", title, text)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Leave the run, if `init` has joined it."""
        global run, config
        if self._owned:
            failed = bool(exit_code)
            self.recording.leave("failed" if failed else "done", f"exit code {exit_code}" * failed)
        if run is self:
            run, config = None, Config()

    def __enter__(self) -> "WandbRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish(1 if kind is not None else 0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a run of strata.compat.wandb has no {name!r}. {HINT}")


run: WandbRun | None = None
config = Config()
util = SimpleNamespace(
    generate_id=lambda length=8: "".join(
        secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length)
    )
)


def init(
    config: Any = None,
    name: str | None = None,
    mode: str | None = None,
    **given: Any,
) -> WandbRun:
    """Start to record: in the open run of this process, else in one that is joined for it."""
    if mode not in MODES:
        raise InvalidArgument(
            f"wandb.init has no mode {mode!r}",
            hint="leave `mode` out; Strata records on this machine",
        )
    for other in OTHER_RECORDS:
        if given.pop(other, None):
            raise InvalidArgument(
                f"wandb.init({other}=True) would record nothing",
                hint="log the values with wandb.log or run.log",
            )
    if unknown := given.keys() - WITHOUT_EFFECT:
        raise InvalidArgument(
            f"wandb.init has no argument {min(unknown)!r} here",
            hint=f"it takes config and name; without effect: {', '.join(sorted(WITHOUT_EFFECT))}",
        )
    first = mapping_of(config)
    started = run or _begin(name or "", disabled=mode == "disabled")
    for known in ("project", "entity", "group", "notes"):
        setattr(started, known, given.get(known) or getattr(started, known))
    started.tags = tuple(given.get("tags") or started.tags)
    if first:
        started.config.update(first)
    return started


def _begin(name: str, *, disabled: bool) -> WandbRun:
    global run, config
    opened = None if disabled else open_run()
    joined = None if disabled else opened or join()
    run = WandbRun(joined, owned=opened is None and not disabled, name=name)
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


def define_metric(name: str, *given: Any, **named: Any) -> None:
    """`wandb.run.define_metric`."""
    _started("define_metric").define_metric(name, *given, **named)


def watch(*given: object, **named: object) -> None:
    """`wandb.run.watch`."""
    _started("watch").watch(*given, **named)


def unwatch(*given: object) -> None:
    """`wandb.run.unwatch`."""
    _started("unwatch").unwatch(*given)


def alert(title: str, text: str = "", **given: object) -> None:
    """`wandb.run.alert`."""
    _started("alert").alert(title, text, **given)


def login(*_: object, **__: object) -> bool:
    """Accepted; Strata needs no login."""
    return True


def Settings(**given: Any) -> SimpleNamespace:
    """Accepted; settings of W&B have no effect."""
    return SimpleNamespace(**given)


def _started(call: str) -> WandbRun:
    if run is None:
        raise NotAllowedNow(f"wandb.{call} before wandb.init", hint="call wandb.init() first")
    return run


def __getattr__(name: str) -> Any:
    if name == "summary":
        return _started("summary").summary
    raise AttributeError(f"strata.compat.wandb has no {name!r}; it offers {OFFERED}. {HINT}")


__all__ = [
    "Histogram",
    "Image",
    "Settings",
    "Table",
    "alert",
    "config",
    "define_metric",
    "finish",
    "init",
    "log",
    "login",
    "run",
    "unwatch",
    "util",
    "watch",
]
