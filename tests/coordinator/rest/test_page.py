"""Serving of the dashboard's files: caching, compression, and no other files of the disk."""

import re
from pathlib import Path

import pytest

from strata.coordinator.rest import page_files

SOURCE = Path(__file__).parents[3] / "web" / "src"
ASSETS = [path for path in page_files.load() if path.startswith(page_files.NAMED_BY_CONTENT)]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|document\.write|eval\(")


def test_page_references_only_existing_files(client):
    html = client.get("/").text
    named = re.findall(r'(?:src|href)="\.?(/[^"]*)"', html)
    assert len(named) >= 3
    assert {path: client.get(path).status_code for path in named} == dict.fromkeys(named, 200)


def test_page_has_no_inline_code():
    html = (page_files.FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style", html)
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)


def test_page_never_renders_text_as_markup():
    sources = [*SOURCE.rglob("*.ts"), *SOURCE.rglob("*.tsx")]
    assert sources
    assert [file.name for file in sources if MARKUP.search(file.read_text("utf-8"))] == []


def test_files_named_by_content_are_cached_for_ever(client):
    assert ASSETS
    for path in ASSETS:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers.get_list("Cache-Control") == [page_files.IMMUTABLE]


def test_document_is_revalidated(client):
    first = client.get("/")
    assert first.headers.get_list("Cache-Control") == [page_files.REVALIDATE]
    again = client.get("/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_text_is_compressed_if_accepted(client):
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
def test_paths_on_disk_are_not_served(client, path):
    assert client.get(path).status_code == 404
