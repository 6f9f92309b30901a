"""Guards the page: its files are served, hold nothing inline, and ask only for what exists."""

import re

import pytest

from strata.coordinator.http import page


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")],
)
def test_the_files_are_served(client, path, media_type):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == f"{media_type}; charset=utf-8"


def test_nothing_inline_that_the_policy_would_block():
    html = (page.FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style", html)
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)


def test_text_of_the_cluster_is_never_taken_for_markup():
    script = (page.FOLDER / "app.js").read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def test_the_page_asks_only_for_what_exists(client):
    html = client.get("/").text
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', html):
        assert client.get(path).status_code == 200
    script = client.get("/app.js").text
    for path in set(re.findall(r'["`](/api/[a-z]+)', script)) - {"/api/stream"}:
        assert client.get(path).status_code == 200


def test_no_path_on_disk_can_be_named(client):
    for path in ("/../config.py", "/%2e%2e/config.py", "/..%2fconfig.py", "/__init__.py"):
        assert client.get(path).status_code == 404
