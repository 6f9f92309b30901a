"""Collects the pages of the site: copies of the repository's Markdown with their links rewritten.

A page keeps its name in lower case: `docs/TRAINING.md` becomes `training.md`. A link to a file that
is no page, such as an example script, becomes a link to a page that shows that file, because the
site is also read without a network.
"""

import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```[ ]*$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
LANGUAGES |= {".proto": "protobuf", ".sbatch": "bash"}
SHOWN_BYTES = 200_000
RANKS = {"glossary.md": 3.0, "decisions.md": 0.3, "seeds.md": 0.2, "changelog.md": 0.2}
"""How much more a page counts in the search than others."""
REFERENCE_RANK = 0.3


class BrokenLink(Exception):
    """A page links to a file that does not exist."""


def sources() -> list[Path]:
    """The Markdown files that are pages."""
    found = [file for file in DOCS.rglob("*.md") if "site" not in file.relative_to(DOCS).parts]
    return [*sorted(found), *(ROOT / name for name in ROOT_PAGES)]


def site_path(file: Path) -> str:
    """The path of a file's page below the folder of sources."""
    path = file.relative_to(ROOT).as_posix().removeprefix("docs/")
    path = posixpath.join(posixpath.dirname(path), posixpath.basename(path).lower())
    if file.suffix == ".md":
        return path.replace("/readme.md", "/index.md")
    return f"files/{path}.md"


def links(text: str) -> Iterator[str]:
    """The targets of the links in Markdown, without those in code blocks."""
    for part in FENCE.split(text):
        if not part.startswith("```"):
            yield from LINK.findall(part)


def is_outside(target: str) -> bool:
    return "://" in target or target.startswith(("#", "mailto:"))


def linked_file(source: Path, target: str) -> Path:
    """The file of the repository that a relative link names."""
    file = (source.parent / target.partition("#")[0]).resolve()
    if not file.exists() or not file.is_relative_to(ROOT):
        raise BrokenLink(f"{source.relative_to(ROOT)} links to {target}, which does not exist")
    return file


def rewritten(source: Path, text: str, shown: set[Path]) -> str:
    """The text with its links changed to the paths of pages; adds the files to show to `shown`."""

    def change(match: re.Match[str]) -> str:
        target = match[1]
        if is_outside(target):
            return match[0]
        file = linked_file(source, target)
        anchor = target.partition("#")[2]
        if file.suffix == ".png":
            to = file.relative_to(DOCS).as_posix()
        else:
            to = site_path(file)
            if file.suffix != ".md":
                shown.add(file)
        base = posixpath.dirname(site_path(source))
        path = posixpath.relpath(to, base or ".")
        return f"]({path}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(change, part) for part in parts)


def file_page(file: Path) -> str:
    """A page that shows a file, or lists the files of a folder."""
    name = file.relative_to(ROOT).as_posix()
    if file.is_dir():
        inside = [each for each in sorted(file.iterdir()) if each.name != "__pycache__"]
        rows = [f"- `{each.name}{'/' if each.is_dir() else ''}`" for each in inside]
        return f"# {name}\n\n" + "\n".join(rows) + "\n"
    content = file.read_text("utf-8")
    if len(content) > SHOWN_BYTES:
        raise BrokenLink(f"{name} is too large to be shown on a page; link to a smaller file")
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {name}\n\n````{language}\n{content.rstrip()}\n````\n"


def write(folder: Path, path: str, text: str) -> None:
    """Write a page of the folder of sources."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    low = path.startswith(("files/", "reference/"))
    rank = RANKS.get(path, REFERENCE_RANK if low else 1.0)
    search = "exclude: true" if path == "readme.md" else f"boost: {rank}"
    file.write_text(f"---\nsearch:\n  {search}\n---\n{text}", "utf-8")


def collect(folder: Path) -> None:
    """Write every page that is not generated from code."""
    shown: set[Path] = set()
    for source in sources():
        text = rewritten(source, source.read_text("utf-8"), shown)
        write(folder, site_path(source), text)
    for file in sorted(shown):
        write(folder, site_path(file), file_page(file))
    shutil.copytree(DOCS / "images", folder / "images")
