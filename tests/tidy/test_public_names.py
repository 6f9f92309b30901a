"""Guards the public surface: a name enters or leaves `strata` only by changing this list."""

import strata

PUBLIC_NAMES = [
    "__version__",
]


def test_public_names_are_frozen_and_sorted():
    assert strata.__all__ == PUBLIC_NAMES == sorted(PUBLIC_NAMES)


def test_every_public_name_exists():
    assert [name for name in strata.__all__ if not hasattr(strata, name)] == []
