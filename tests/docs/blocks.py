"""The code blocks of the documentation, and how each is checked.

The language of a block says what happens to it; its title, which the site shows above it, says why
a block is not run or not compared:

- `python` runs as it stands, after `prelude.py`, which defines names such as `train_set`; with a
  title `not run by tests: REASON` it is only compiled;
- `bash` with lines of `strata`: each command is checked against the parser of the command line and
  run in a folder with a recorded run and a coordinator; with a title `checked, not run by tests:
  REASON` it is only checked, and with `not run by tests: REASON` it is another program's;
- `console` shows a command after `$ ` and what it printed: the command is checked;
- `json`, `toml` are parsed; settings in `toml` exist;
- `text` needs a title that says what it is; `mermaid` and `yaml` are read by other tests.
"""

import re
import shlex
from pathlib import Path

from msgspec import Struct

from docs.site.pages import DOCS, ROOT

GENERATED = {"EVENTS.md", "LIFECYCLES.md", "SEEDS.md", "BENCHMARKS.md", "STOPWATCH.md", "FAULTS.md"}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]*)"')
LANGUAGES = {"python", "bash", "console", "json", "toml", "text", "yaml"}
NOT_RUN = "not run by tests: "
CHECKED = f"checked, {NOT_RUN}"

RUN_ELSEWHERE = {
    ("docs/TUTORIAL.md", "import torch"): "tests/torch/test_tutorial.py",
    ("docs/TRAINING.md", "import torch"): "tests/torch/test_warm_start_page.py",
    ("docs/CHECKPOINT_FORMAT.md", "import json"): "tests/checkpoint/test_export.py",
}
"""Blocks that a test of their own runs, by page and first line."""


class Block(Struct, frozen=True, kw_only=True):
    """A code block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return NOT_RUN not in self.title and (self.page, self.first) not in RUN_ELSEWHERE

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continued ones joined; of a console those after `$ `."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(file: Path) -> list[Block]:
    """The code blocks of a page."""
    text = file.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        info = match[1].strip()
        title = TITLE.search(info)
        found.append(
            Block(
                page=file.relative_to(ROOT).as_posix(),
                line=text.count("\n", 0, match.start()) + 1,
                language=info.partition(" ")[0],
                title=title[1] if title else "",
                text=match[2],
            )
        )
    return found


def all_blocks() -> list[Block]:
    """The code blocks of every page that is written by hand."""
    files = [file for file in sorted(DOCS.rglob("*.md")) if file.name not in GENERATED]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"]
    return [block for file in files for block in blocks_of(file)]


def strata_arguments(command: str) -> list[str] | None:
    """The arguments of a `strata` command of a line; None if the line runs another program."""
    words = shlex.split(command, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    for stop in ("|", ">", "&&", "&"):
        if stop in words:
            words = words[: words.index(stop)]
    return words[1:] if words[:1] == ["strata"] else None
