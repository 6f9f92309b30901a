"""`wandb.config` and `run.summary`."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from strata.errors import InvalidArgument, NotAllowedNow

SUMMARIES = ("last", "min", "max", "first", "none")


def mapping_of(config: Any) -> dict[str, Any]:
    """A configuration as a mapping: a mapping, or an object such as that of argparse."""
    if isinstance(config, Mapping):
        return dict(config)
    if config is None:
        return {}
    if isinstance(config, str) or not hasattr(config, "__dict__"):
        raise InvalidArgument(
            f"config={config!r} is not a configuration",
            hint="pass a dictionary, or the result of parser.parse_args()",
        )
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


class Config(dict[str, Any]):
    """`wandb.config`: values by key or by attribute; each change is recorded."""

    def __init__(self, record: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        super().__init__()
        self.__dict__["_record"] = record

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
        if (record := self.__dict__["_record"]) is None:
            raise NotAllowedNow(
                "wandb.config is changed before wandb.init", hint="call wandb.init() first"
            )
        super().update(*(mapping_of(each) for each in given), **named)
        record(self)

    def setdefaults(self, given: Any) -> None:
        """Add the values of names that are missing."""
        self.update({k: v for k, v in mapping_of(given).items() if k not in self})

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Add a value if the name is missing."""
        self.setdefaults({name: default})
        return self[name]

    def __ior__(self, given: Any) -> "Config":  # type: ignore[override,misc]
        self.update(given)
        return self

    def as_dict(self) -> dict[str, Any]:
        """A copy as a plain dictionary."""
        return dict(self)


class Summary(dict[str, Any]):
    """`run.summary`: the last value of each metric, or what `define_metric` says; values that are
    set are recorded."""

    def __init__(self, record: Callable[[Mapping[str, Any]], object]) -> None:
        super().__init__()
        self._record = record
        self._rules: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value.item() if hasattr(value, "item") else value

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the summary has no {name!r}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._record({name: value})
        super().__setitem__(name, value)

    def update(self, *given: Any, **named: Any) -> None:
        """Set values."""
        for name, value in dict(*given, **named).items():
            self[name] = value

    def define(self, name: str, summary: str) -> None:
        """Set the rule of metrics whose name matches."""
        wanted = summary.split(",")[-1].strip()
        if wanted not in SUMMARIES:
            raise InvalidArgument(
                f"wandb.define_metric has no summary {summary!r} here",
                hint=f"use {', '.join(SUMMARIES)}",
            )
        self._rules[name] = wanted

    def note(self, name: str, value: Any) -> None:
        """Take in a value that was logged."""
        found = (rule for glob, rule in self._rules.items() if fnmatchcase(name, glob))
        rule = next(found, "last")
        # A tensor would keep its graph, and to read it from a GPU would wait for it.
        value = value.detach() if hasattr(value, "detach") else value
        if rule in ("min", "max") and name in self:
            value = (min if rule == "min" else max)(float(self[name]), float(value))
        if rule != "none" and not (rule == "first" and name in self):
            super().__setitem__(name, value)
