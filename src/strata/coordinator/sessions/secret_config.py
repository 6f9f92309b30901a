"""Texts of a task's config whose names say that they are secret, such as `api_key`.

The config is part of a fact, and the log is never rewritten. So these texts travel with the task's
environment, which is stored outside the log, and the fact has `***` in their place. The worker puts
them back (`secret_names.merged`), so `run.config` is what was submitted.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from strata.core.secret_names import HIDDEN, is_secret, merged
from strata.errors import InvalidArgument

SECRET_CONFIG = "STRATA_SECRET_CONFIG"
"""The variable of the environment that holds them, as JSON."""


def without_secrets(config: str, env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The config with `***` for each secret text, and the environment with the texts.

    Raises if a secret is missing: `***` is all that is stored of it.
    """
    shown: dict[str, Any] = merged(msgspec.json.decode(config), env.get(SECRET_CONFIG, ""))
    secrets = _take(shown)
    missing = [name for name, text in _flat(secrets) if text == HIDDEN]
    if missing:
        raise InvalidArgument(
            f"config: the task needs values for {', '.join(missing)}",
            hint="secret values are not stored, so give them again: --config NAME=VALUE, "
            f"or --env {SECRET_CONFIG}=JSON",
        )
    others = {name: text for name, text in env.items() if name != SECRET_CONFIG}
    if not secrets:
        return config, others
    hidden = msgspec.json.encode(shown).decode()
    return hidden, others | {SECRET_CONFIG: msgspec.json.encode(secrets).decode()}


def _take(config: dict[str, Any]) -> dict[str, Any]:
    """Hide the secret texts of a config in place; returns them, nested as they were."""
    taken: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            if inner := _take(value):
                taken[name] = inner
        elif isinstance(value, str) and value and is_secret(name):
            taken[name], config[name] = value, HIDDEN
    return taken


def _flat(secrets: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in secrets.items():
        inner = isinstance(value, dict)
        found += _flat(value, f"{above}{name}.") if inner else [(above + name, value)]
    return found
