"""What `strata explain` knows: words of the glossary, settings, kinds of events, exit codes.

The texts are those of `docs/GLOSSARY.md` and `docs/SETTINGS.md`, which the wheel contains, and the
docstrings of the facts.
"""

import difflib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

import strata
from strata.cli.support import exit_codes
from strata.errors import NotFound

PACKAGED = "pages"
SUGGESTED = 5

_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_EMPHASIS = re.compile(r"(?<!\w)\*([^*]+)\*(?!\w)")
_SECTION = re.compile(r"^### (.+)$", re.MULTILINE)


class Explanation(Struct, frozen=True):
    """A word, what it is (`word`, `setting`, `event` or `exit code`), and its text."""

    word: str
    kind: str
    text: str


def explanations() -> list[Explanation]:
    """All explanations; the words of the glossary first."""
    return [*_words(), *_settings(), *_events(), *_exit_codes()]


def find(wanted: str, known: list[Explanation]) -> list[Explanation]:
    """The explanations of a word; raises with the closest words if there is none."""
    names: dict[str, list[Explanation]] = {}
    for each in known:
        names.setdefault(_key(each.word), []).append(each)
    key = _key(wanted)
    for candidate in (key, key.removesuffix("s")):
        if candidate in names:
            return names[candidate]
    close = difflib.get_close_matches(key, names, n=SUGGESTED, cutoff=0.6)
    inside = [name for name in names if len(key) > 2 and key in name]
    similar = list(dict.fromkeys(names[name][0].word for name in [*close, *inside]))[:SUGGESTED]
    hint = f"did you mean {', '.join(similar)}?" if similar else "strata explain lists the words"
    raise NotFound(f"there is no explanation of {wanted!r}", hint=hint)


def page(name: str) -> str:
    """A page of the documentation: packaged with an installed release, else of the source tree."""
    package = Path(strata.__file__).parent
    for path in (package / PACKAGED / name, package.parents[1] / "docs" / name):
        if path.exists():
            return path.read_text("utf-8")
    raise NotFound(f"{name} is not part of this installation", hint="install strata-runtime again")


def plain_text(markdown: str) -> str:
    """Markdown without the marks of links and emphasis."""
    return _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", markdown)).strip()


def _key(word: str) -> str:
    """A word as it is compared: without case, `barrier-round` like `barrier round`."""
    return re.sub(r"[\s_-]+", " ", word.strip().lower())


def _words() -> Iterator[Explanation]:
    _, *parts = _SECTION.split(page("GLOSSARY.md"))
    for word, text in zip(parts[::2], parts[1::2], strict=True):
        yield Explanation(word=word.strip(), kind="word", text=plain_text(text))


def _settings() -> Iterator[Explanation]:
    """The settings, from the rows of their tables; a row may explain several."""
    for line in page("SETTINGS.md").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        names = re.findall(r"`(\w+)`", cells[0]) if len(cells) == 4 else []
        for name in names:
            default = cells[1] or "not set"
            text = f"{cells[3]}\n\nRead by: {cells[2]}. Default: {default}."
            text += f"\nIn strata.toml: {name}; in the environment: STRATA_{name.upper()}."
            yield Explanation(word=name, kind="setting", text=plain_text(text))


def _events() -> Iterator[Explanation]:
    # Imported here: the words and settings need none of the facts.
    from strata.core.record.event_reference import MODULES, kinds_of

    for module in MODULES:
        for kind in kinds_of(module.__name__):
            fields = ", ".join(kind.__struct_fields__)
            text = f"{inspect.cleandoc(kind.__doc__ or '')}\n\nFields: {fields or 'none'}."
            yield Explanation(word=kind.__name__, kind="event", text=text)


def _exit_codes() -> Iterator[Explanation]:
    for code, meaning in exit_codes.MEANINGS.items():
        yield Explanation(word=str(code), kind="exit code", text=meaning)
