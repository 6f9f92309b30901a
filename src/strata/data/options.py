"""What a format is told: options by name, checked before the format is made.

A format says what it takes by the parameters of its class, with their types, so that a slip is an
answer that names the option and what there is to choose from. Types of somebody's own, which
cannot be checked, are left to the format.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec

from strata.data.base import Mismatch

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


def check_options(factory: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Refuses options that a format does not have, that it lacks, or of another type."""
    _, *parameters = inspect.signature(factory).parameters.values()
    takes = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    hint = f"its options are {', '.join(takes)}" if takes else "it has no options"
    unknown = options.keys() - takes.keys()
    if unknown and len(takes) == len(parameters):
        raise Mismatch("", f"there is no option {min(unknown)!r}", hint)
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in options:
            raise Mismatch("", f"the option {name!r} is missing", hint)
    for name, wanted in _types(factory).items():
        if name in options:
            _check_type(name, options[name], wanted)


def _types(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        made = factory.__init__ if inspect.isclass(factory) else factory
        return get_type_hints(made, include_extras=True)
    except (NameError, TypeError):  # types that exist only for a checker
        return {}


def _check_type(name: str, value: object, wanted: Any) -> None:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise Mismatch("", f"the option {name!r} is {value!r:.80}", str(error)) from error
    except TypeError:
        return  # a type that msgspec does not know
