"""Build the documentation site into a folder, one subfolder per version.

    python -m docs.site.build [--out FOLDER]

The default folder is the one from which the coordinator serves `/docs`, and which a wheel
contains. Other versions in it are kept and listed in `versions.json`, in the form of mike, so that
the page can switch between them. A warning is an error.
"""

import argparse
import hashlib
import html
import json
import logging
import re
import shutil
import sys
import tempfile
from pathlib import Path

from docs.site import diagrams, llms, pages, references
from strata import __version__

HERE = Path(__file__).parent
SITE = pages.ROOT / "src" / "strata" / "docs_site"
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>Strata</title>'
    '<link rel="icon" href="{0}/assets/strata.svg">'
    '<meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">Strata {0}</a>\n'
)


def write_sources(folder: Path) -> None:
    """Write every page as Markdown."""
    pages.collect(folder)
    for name, change in (
        ("lifecycles.md", diagrams.life_cycles),
        ("benchmarks.md", diagrams.benchmarks),
    ):
        file = folder / name
        file.write_text(change(file.read_text("utf-8")), "utf-8")
    references.write_all(folder)
    llms.write_all(folder, HERE / "mkdocs.yml")
    assets = folder / "assets"
    assets.mkdir()
    shutil.copy(HERE / "strata.css", assets)
    shutil.copy(pages.ROOT / "src" / "strata" / "webui" / "icon.svg", assets / "strata.svg")


class Warnings(logging.Handler):
    """Collects what the generator warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def render(sources: Path, out: Path) -> list[str]:
    """Build the site from the Markdown; returns the warnings."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    found = Warnings()
    logger = logging.getLogger("mkdocs")
    logger.addHandler(found)
    try:
        config = load_config(str(HERE / "mkdocs.yml"), docs_dir=str(sources), site_dir=str(out))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    finally:
        logger.removeHandler(found)
    return found.texts


def finish(site: Path) -> None:
    """Move inline scripts to files, which the coordinator's content security policy requires, and
    remove what no page uses."""
    scripts = site / "assets" / "inline"
    scripts.mkdir(parents=True)
    depth_of = {file: len(file.relative_to(site).parts) - 1 for file in site.rglob("*.html")}
    for file, depth in depth_of.items():

        def move(match: re.Match[str], up: str = "../" * depth) -> str:
            name = f"{hashlib.blake2b(match[1].encode(), digest_size=8).hexdigest()}.js"
            (scripts / name).write_text(html.unescape(match[1]), "utf-8")
            return f'<script src="{up}assets/inline/{name}"></script>'

        file.write_text(INLINE.sub(move, file.read_text("utf-8")), "utf-8")
    for unused in [*site.rglob("*.map"), *site.glob("sitemap.xml*"), *site.glob("404.html")]:
        unused.unlink()
    shutil.rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)


def list_versions(out: Path) -> None:
    """Write `versions.json`, newest first, and a page that opens the newest."""
    found = sorted(
        (each.name for each in out.iterdir() if (each / "index.html").is_file()),
        key=lambda name: [int(part) if part.isdigit() else -1 for part in re.split(r"\W", name)],
        reverse=True,
    )
    listed = [{"version": name, "title": name, "aliases": []} for name in found]
    (out / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", "utf-8")
    (out / "index.html").write_text(REDIRECT.format(found[0]), "utf-8")


def build(out: Path) -> list[str]:
    """Build the site of this version below `out`; returns the warnings."""
    with tempfile.TemporaryDirectory(prefix="strata-docs-") as scratch:
        sources, built = Path(scratch) / "sources", Path(scratch) / "site"
        sources.mkdir()
        write_sources(sources)
        warnings = render(sources, built)
        finish(built)
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / __version__, ignore_errors=True)
        shutil.move(built, out / __version__)
    list_versions(out)
    return warnings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=SITE, help="folder of the versions")
    out = parser.parse_args().out.resolve()
    warnings = build(out)
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    if warnings:
        sys.exit(f"the site has {len(warnings)} warnings")
    print(f"documentation {__version__}: {out / __version__ / 'index.html'}")


if __name__ == "__main__":
    main()
