"""Guards what everyone needs to use the page: contrast, names, keyboard, a phone's width."""

from pathlib import Path

import pytest

from tests.web.test_views import expect

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
VIEWS = [
    "overview",
    "workers",
    "tasks",
    "tasks/new",
    "data",
    "data?form=register",
    "data/noise",
    "checkpoints",
    "barriers",
    "logs",
    "timeline",
    "settings",
]


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(visit, view, scheme):
    page = visit(view)
    page.emulate_media(color_scheme=scheme)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle", timeout=3000) if view == "tasks/new" else None
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.parametrize(
    "view", ["overview", "workers", "logs", "tasks", "timeline", "data/noise", "settings"]
)
def test_a_phone_shows_it_without_scrolling_sideways(visit, view):
    page = visit(view)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    # Tables are laid out anew when they learn of the new width, a moment after the window.
    page.wait_for_function("document.documentElement.scrollWidth <= 390")


def test_nothing_moves_for_those_who_asked_for_that(visit):
    page = visit("overview")
    page.emulate_media(reduced_motion="reduce")
    moving = "document.getAnimations().filter((each) => each.playState === 'running').length"
    assert page.evaluate(moving) == 0
