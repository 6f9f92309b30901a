"""For programs: `llms.txt` lists all pages, `llms-full.txt` has the text of the written ones."""

import re
from pathlib import Path

SECTION = re.compile(r"^ +- ([\w ,]+):$")
PAGE = re.compile(r"^ +- ([^:]+): ([\w/.-]+\.md)$")
FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
HEAD = """# Strata

> Strata is a distributed-training runtime with a complete record of every run.

The links are relative to this file. `llms-full.txt` beside it has the text of the pages that are
not references.
"""


def navigation(config: Path) -> list[tuple[str, str]]:
    """Titles and pages of the navigation; a section has no page."""
    nav = config.read_text("utf-8").partition("\nnav:\n")[2]
    found = []
    for line in nav.splitlines():
        if page := PAGE.match(line):
            found.append((page[1], page[2]))
        elif section := SECTION.match(line):
            found.append((section[1], ""))
    return found


def address(page: str) -> str:
    """The address of a page, relative to the root of the site."""
    path = page.removesuffix(".md")
    return f"{path.removesuffix('index')}" if path.endswith("index") else f"{path}/"


def write_all(folder: Path, config: Path) -> None:
    """Write both files into the folder of sources."""
    listed, full = [HEAD], []
    for title, page in navigation(config):
        if not page:
            listed.append(f"\n## {title}\n")
            continue
        listed.append(f"- [{title}]({address(page) or './'})")
        if not page.startswith(("reference/", "files/")):
            full.append(FRONT.sub("", (folder / page).read_text("utf-8")))
    (folder / "llms.txt").write_text("\n".join(listed) + "\n", "utf-8")
    (folder / "llms-full.txt").write_text("\n\n".join(full), "utf-8")
