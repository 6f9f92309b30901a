"""Hypothesis strategies for any Struct, from the types of its fields."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args, get_origin

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct

Choices: TypeAlias = Mapping[object, SearchStrategy]
"""What to draw for a type, or for every field of a name."""

ANYTHING: Choices = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=8),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
}


def instances(kind: type[Struct], choices: Choices = ANYTHING) -> SearchStrategy:
    """Instances of a Struct; a field with a default is sometimes left to it."""
    fields = msgspec.structs.fields(kind)
    drawn = {
        field.name: choices[field.name] if field.name in choices else values(field.type, choices)
        for field in fields
    }
    required = {field.name: drawn[field.name] for field in fields if field.required}
    optional = {field.name: drawn[field.name] for field in fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))


def values(hint: object, choices: Choices) -> SearchStrategy:
    """Values of a field's type."""
    if hint in choices:
        return choices[hint]
    if hint is type(None):
        return st.none()
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(values(args[0], choices), max_size=3)
    if origin is dict:
        return st.dictionaries(values(args[0], choices), values(args[1], choices), max_size=3)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(values(args[0], choices), max_size=3).map(tuple)
        return st.tuples(*(values(arg, choices) for arg in args))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return instances(hint, choices)
    assert args, f"no values for {hint}"
    return st.one_of(*(values(arg, choices) for arg in args))
