"""Methods of another framework's class that a run cannot honour, refused by name."""

from collections.abc import Callable, Mapping
from typing import Any

from strata.errors import InvalidArgument, NotAllowedNow


def refuse_methods(kind: type, refused: Mapping[str, str]) -> None:
    """Let methods and properties of a class raise; `refused` says for each what to use instead."""
    for name, instead in refused.items():
        inherited = getattr(kind, name, None)
        if inherited is None:
            continue  # this version of the framework does not have it
        raising = _raising(f"{kind.__name__}.{name}", instead)
        replaced = property(raising) if isinstance(inherited, property) else raising
        setattr(kind, name, replaced)


def refuse_options(kind: str, given: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    """Raise for an option that was given; `refused` says for each what to use instead."""
    for name, instead in refused.items():
        if given.get(name):
            raise InvalidArgument(
                f"{kind} under Strata does not support {name}={given[name]!r:.60}", hint=instead
            )


def _raising(name: str, instead: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotAllowedNow(f"{name} does not know the workers of the run", hint=instead)

    return refused
