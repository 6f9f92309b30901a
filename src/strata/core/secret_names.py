"""Secret values in configurations: told by their names, hidden in facts, put back by workers."""

import msgspec

from strata.errors import InvalidArgument

SECRET_WORDS = ("api_key", "apikey", "credential", "password", "passwd", "secret", "token")
COUNTED_WORDS = (
    *("per_token", "tokens", "tokenizer", "token_id"),
    *("pad_token", "bos_token", "eos_token", "unk_token", "cls_token", "sep_token", "mask_token"),
)
"""Names of language models contain these, such as `max_tokens`; they are no secrets."""

HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether a value of this name is a secret."""
    lowered = name.lower().replace("-", "_")
    for word in COUNTED_WORDS:
        lowered = lowered.replace(word, "")
    return any(word in lowered for word in SECRET_WORDS)


def merged(config: dict[str, object], secrets: str) -> dict[str, object]:
    """A config with its secret values put back; they are JSON, or empty if there are none."""
    try:
        given = msgspec.json.decode(secrets or "{}", type=dict[str, object])
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            "the secret values of the config are no JSON object",
            hint='for example {"api_key": "..."}',
        ) from error
    return _over(config, given)


def _over(config: dict[str, object], given: dict[str, object]) -> dict[str, object]:
    """`config`, with the values of `given` where it has hidden ones."""
    result = dict(config)
    for name, value in given.items():
        below = result.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            result[name] = _over(below, value)
        elif below == HIDDEN:
            result[name] = value
    return result
