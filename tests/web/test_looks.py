"""Guards accessibility (axe), the layout on a phone, and reduced motion."""

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
    "goodput?price=3/worker-hour",
    "goodput/all-runs",
    "timeline",
    "settings",
]


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_violation(visit, view, scheme):
    page = visit(view)
    page.emulate_media(color_scheme=scheme)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle", timeout=3000) if view == "tasks/new" else None
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.parametrize(
    "view",
    ["overview", "workers", "logs", "tasks", "goodput", "timeline", "data/noise", "settings"],
)
def test_view_fits_the_width_of_a_phone(visit, view):
    page = visit(view)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    # Tables learn of the new width a moment after the window.
    page.wait_for_function("document.documentElement.scrollWidth <= 390")


def test_reduced_motion_stops_animations(visit):
    page = visit("overview")
    page.emulate_media(reduced_motion="reduce")
    moving = "document.getAnimations().filter((each) => each.playState === 'running').length"
    assert page.evaluate(moving) == 0
