"""Guards the documentation site: it builds without a warning, every link in it leads somewhere, it
loads nothing from other hosts, and its references are complete."""

import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from docs.site import pages, references
from strata import __version__
from strata.cli import verb_files
from strata.config import FIELDS
from strata.core.record.event_codec import CODEC

pytestmark = pytest.mark.slow
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src"}
NAVIGATION = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, file) -> None:
        super().__init__()
        self.links, self.loaded, self.anchors, self.inline = set(), set(), set(), 0
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag == "a" and "href" in named:
            self.links.add(named["href"])
        if named.get(LOADED.get(tag)) and named.get("rel") not in NAVIGATION:
            self.loaded.add(named[LOADED[tag]])
        self.anchors |= {named[key] for key in ("id", "name") if named.get(key)}
        data = named.get("type") == "application/json"
        self.inline += (tag == "script" and "src" not in named and not data) or tag == "style"


@pytest.fixture(scope="module")
def built(site):
    """Each page of the site by its file."""
    return {file.resolve(): Page(file) for file in sorted((site / __version__).rglob("*.html"))}


def target_of(file, link):
    """The file that a relative link leads to."""
    found = (file.parent / unquote(urlsplit(link).path)).resolve()
    return found / "index.html" if found.is_dir() else found


def test_site_builds_without_a_warning(site):
    assert json.loads((site.parent / "warnings.json").read_text("utf-8")) == []
    assert json.loads((site / "versions.json").read_text("utf-8"))[0]["version"] == __version__


def test_every_link_leads_to_a_page_and_an_anchor_that_exist(built):
    assert len(built) > 30
    broken = []
    for file, page in built.items():
        for link in sorted(page.links | page.loaded):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            target = target_of(file, link) if parts.path else file
            anchor = "" if link in page.loaded else unquote(parts.fragment)
            known = built[target].anchors if target in built else set()
            if not target.is_file() or (anchor and anchor not in known):
                broken.append(f"{file.relative_to(file.parents[1])}: {link}")
    assert broken == []


def test_pages_load_nothing_from_other_hosts_and_have_no_inline_code(built):
    """The coordinator's content security policy would refuse both."""
    assert {link for page in built.values() for link in page.loaded if "//" in link} == set()
    assert [str(file) for file, page in built.items() if page.inline] == []


def test_style_sheets_load_nothing_from_other_hosts(site):
    texts = [file.read_text("utf-8") for file in site.rglob("*.css")]
    assert texts
    assert [found for text in texts for found in re.findall(r"url\(['\"]?https?:[^)]*", text)] == []


@pytest.mark.parametrize("package", references.PACKAGES)
def test_every_public_name_is_on_its_page(site, package):
    name = f"python-{package.replace('.', '-')}"
    text = (site / __version__ / "reference" / name / "index.html").read_text("utf-8")
    names = references.public_names(package)
    assert len(names) > 5
    heading = r'class="doc doc-heading">\s*(?:<code[^>]*></code>)?\s*([\w.]+)'
    headings = set(re.findall(heading, text))
    assert [each for each in names if f"{package}.{each}" not in headings] == []


def test_references_are_complete(site):
    """Verbs, settings, kinds of events and endpoints are each on their page."""

    def page(name):
        return Page(site / __version__ / name / "index.html").anchors

    verbs = {f"strata-{file.stem.replace('_', '-')}" for file in verb_files()}
    assert verbs <= page("reference/commands")
    assert {kind.lower() for kind in CODEC.kinds} <= page("events")
    settings = (site / __version__ / "settings" / "index.html").read_text("utf-8")
    assert [name for name in FIELDS if f"<code>{name}</code>" not in settings] == []


def test_every_page_of_the_sources_is_in_the_navigation():
    text = (pages.DOCS / "site" / "mkdocs.yml").read_text("utf-8")
    named = set(re.findall(r": ([\w/.-]+\.md)$", text, re.MULTILINE))
    found = {pages.site_path(file) for file in pages.sources()}
    assert sorted(found - named) == ["readme.md"], "only its links are checked here"


@pytest.mark.parametrize("link", ["NOWHERE.md", "../../outside.md"])
def test_link_to_a_missing_file_is_an_error(link):
    with pytest.raises(pages.BrokenLink, match="does not exist"):
        pages.rewritten(pages.DOCS / "DATA.md", f"[x]({link})", set())


def test_links_in_code_are_left_alone():
    text = "```\n[x](NOWHERE.md)\n```\n"
    assert pages.rewritten(pages.DOCS / "DATA.md", text, set()) == text


def test_llms_list_links_to_every_page_of_the_navigation(site):
    folder = site / __version__
    found = re.findall(r"\]\(([^)]*)\)", (folder / "llms.txt").read_text("utf-8"))
    assert len(found) > 30
    assert [link for link in found if not (folder / link / "index.html").is_file()] == []
    assert "# Quick start" in (folder / "llms-full.txt").read_text("utf-8")
