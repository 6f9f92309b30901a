"""The configuration of a script as flat names and plain values, without secrets."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from strata.core.secret_names import HIDDEN, is_secret
from strata.core.workers.worker_facts import ConfigValue

MAX_VALUES = 500
MAX_TEXT = 1_000


def config_values(config: Mapping[str, object]) -> dict[str, ConfigValue]:
    """Flatten a configuration: nested names are joined by dots, lists are texts."""
    return dict(islice(_flat(config, ""), MAX_VALUES))


def _flat(config: Mapping[str, object], above: str) -> Iterator[tuple[str, ConfigValue]]:
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name[:MAX_TEXT], HIDDEN if is_secret(name) else _plain(value)


def _plain(value: object) -> ConfigValue:
    """A value as it is recorded; what is neither a number nor a text is shown as text."""
    if value is None or isinstance(value, bool | str):
        return value[:MAX_TEXT] if isinstance(value, str) else value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)[:MAX_TEXT]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return f"[{', '.join(str(_plain(each)) for each in value)}]"[:MAX_TEXT]
    return str(value)[:MAX_TEXT]
