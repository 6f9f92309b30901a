"""Guards how the page is served: every file it names, kept for ever where its name says what is in
it, compressed for those who can, and nothing else of the disk."""

import re
from pathlib import Path

import pytest

from strata.coordinator.http import page

SOURCE = Path(__file__).parents[3] / "web" / "src"
ASSETS = [path for path in page.load() if path.startswith(page.NAMED_BY_CONTENT)]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|document\.write|eval\(")


def test_the_page_asks_only_for_what_exists(client):
    html = client.get("/").text
    named = re.findall(r'(?:src|href)="\.?(/[^"]*)"', html)
    assert len(named) >= 3
    assert {path: client.get(path).status_code for path in named} == dict.fromkeys(named, 200)


def test_nothing_inline_that_the_policy_would_block():
    html = (page.FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style", html)
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)


def test_text_of_the_cluster_is_never_taken_for_markup():
    sources = [*SOURCE.rglob("*.ts"), *SOURCE.rglob("*.tsx")]
    assert sources
    assert [file.name for file in sources if MARKUP.search(file.read_text("utf-8"))] == []


def test_what_is_named_by_its_content_is_kept_for_ever(client):
    assert ASSETS
    for path in ASSETS:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers.get_list("Cache-Control") == [page.FOR_EVER]


def test_the_document_is_asked_for_anew(client):
    first = client.get("/")
    assert first.headers.get_list("Cache-Control") == [page.ASK_AGAIN]
    again = client.get("/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_text_is_compressed_for_those_who_can(client):
    [script] = [path for path in ASSETS if re.match(r"/assets/index-.*\.js$", path)]
    plain = client.get(script, headers={"Accept-Encoding": "identity"})
    small = client.get(script, headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert small.headers["Content-Encoding"] == "gzip"
    assert int(small.headers["Content-Length"]) < len(plain.content) / 2
    assert small.content == plain.content


@pytest.mark.parametrize(
    "path", ["/../config.py", "/%2e%2e/config.py", "/..%2fconfig.py", "/__init__.py"]
)
def test_no_path_on_disk_can_be_named(client, path):
    assert client.get(path).status_code == 404
