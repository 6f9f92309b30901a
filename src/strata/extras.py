"""Optional libraries, and the extra of `strata-runtime` that installs each of them.

A training environment installs what a worker needs; everything else is an extra. A module that is
optional is imported where it is used. `check` says before that which extra is missing, `explained`
afterwards, for the commands, which import a server or an exporter as a whole.
"""

from importlib.util import find_spec
from typing import NamedTuple

from strata.errors import NotFound


class Extra(NamedTuple):
    """An extra, what needs it, and the modules that come with it."""

    name: str
    purpose: str
    modules: frozenset[str]


EXTRAS = (
    Extra(
        "server",
        "a coordinator",
        frozenset(
            {
                "cryptography",
                "grpc_health",
                "grpc_reflection",
                "hpack",
                "litestar",
                "re2",
                "uvicorn",
            }
        ),
    ),
    Extra(
        "data", "reading Parquet, Arrow, compressed files and images", frozenset({"PIL", "pyarrow"})
    ),
    Extra("s3", "storage on S3", frozenset({"obstore"})),
    Extra("postgres", "a store in PostgreSQL", frozenset({"psycopg"})),
    Extra("postgres", "the log in PostgreSQL", frozenset({"psycopg"})),
    Extra("timeline", "SQL over recorded runs", frozenset({"duckdb"})),
    Extra("otlp", "an export to OpenTelemetry", frozenset({"opentelemetry"})),
    Extra("wandb", "an export to W&B", frozenset({"wandb"})),
    Extra("ray", "a cluster on Ray", frozenset({"ray"})),
    Extra("top", "strata top", frozenset({"textual"})),
    Extra("torch", "PyTorch's file formats", frozenset({"torch"})),
)


def installed(module: str) -> bool:
    """Whether a module can be imported."""
    return find_spec(module) is not None


def check(module: str) -> None:
    """Raise, with the extra to install, if a module is missing."""
    if not installed(module):
        raise _missing(module) or ModuleNotFoundError(module)


def explained(error: ModuleNotFoundError) -> NotFound | None:
    """The error to show for a failed import, or None if no extra would bring the module."""
    return _missing(error.name or "")


def _missing(module: str) -> NotFound | None:
    for extra in EXTRAS:
        if module.partition(".")[0] in extra.modules:
            return NotFound(
                f"{module} is not installed, which {extra.purpose} needs",
                hint=f"pip install 'strata-runtime[{extra.name}]'",
            )
    return None
