"""Guards the documentation at `/docs`: served without a token and without a network, opened and
searched in a browser, and a message that says how to build it where it is missing."""

import re

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from strata import __version__
from strata.coordinator.rest import docs_files
from tests.coordinator.rest.served import Coordinator
from tests.programs import program

pytestmark = pytest.mark.slow
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
LOOKED_UP = "incarnation"


@pytest.fixture
def served(site, tmp_path, monkeypatch):
    """A coordinator with a token that serves the built site."""
    monkeypatch.setattr(docs_files, "FOLDER", site)
    with Coordinator(tmp_path, token="a-token-of-this-test") as running:
        yield running


@pytest.fixture
def chromium():
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS) as started,
    ):
        yield started


def test_site_is_opened_and_searched_in_a_browser(served, chromium):
    asked, complaints, refused = set(), [], []
    context = chromium.new_context(color_scheme="dark", viewport={"width": 1200, "height": 800})
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.on("request", lambda request: asked.add(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("response", lambda got: got.ok or refused.append(f"{got.status} {got.url}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{served.url}/docs")
    page.wait_for_url(f"{served.url}/docs/{__version__}/")
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    expect(page.locator(".md-version__current")).to_have_text(__version__)
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type(LOOKED_UP)
    result = page.locator(".md-search-result__link").filter(has_text="Glossary").first
    expect(result).to_be_visible(timeout=30_000)
    result.click()
    page.wait_for_url(re.compile(rf"/docs/{re.escape(__version__)}/.+"))
    expect(page.locator("article")).to_contain_text(re.compile(LOOKED_UP, re.IGNORECASE))
    assert [url for url in asked if not url.startswith(("data:", served.url))] == []
    assert [each for each in refused if not each.startswith(("304", "307"))] == []
    assert complaints == []


def test_every_file_of_the_site_is_served_with_its_type(served, site):
    files = [file for file in site.rglob("*") if file.suffix in docs_files.DOCUMENT_TYPES]
    assert len(files) > 50
    with httpx.Client(base_url=served.url, trust_env=False) as client:
        for file in files:
            answer = client.get(f"/docs/{file.relative_to(site).as_posix()}")
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
            kind = answer.headers["Content-Type"].partition(";")[0]
            assert kind == docs_files.DOCUMENT_TYPES[file.suffix].partition(";")[0]
            again = client.get(answer.url, headers={"If-None-Match": answer.headers["ETag"]})
            assert again.status_code == 304


def test_folder_without_a_slash_leads_to_its_page(served):
    with httpx.Client(base_url=served.url, trust_env=False) as client:
        answer = client.get(f"/docs/{__version__}/training")
        assert answer.status_code == 307
        assert answer.headers["Location"] == "training/"
        assert "The training loop" in client.get(answer.url, follow_redirects=True).text


@pytest.mark.parametrize("path", ["%2e%2e/page_files.py", "..%2f..%2fconfig.py", "nothing", "%00"])
def test_only_files_of_the_site_are_served(served, path):
    headers = {"Authorization": "Bearer a-token-of-this-test"}
    answer = httpx.get(f"{served.url}/docs/{path}", headers=headers, trust_env=False)
    assert answer.status_code in (400, 404)


def test_without_a_site_the_answer_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_files, "FOLDER", tmp_path / "nowhere")
    with Coordinator(tmp_path) as running, running.client() as client:
        answer = client.get("/docs")
        assert answer.status_code == 404
        assert "make docs" in answer.text
        assert client.get("/").status_code == 200
