"""Guards the arrows of causes, which go from the lane of a cause to the lane of its effect.

The test reads the calls that draw on the browser's canvas.
"""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.web.test_views import expect

LABEL_PX = 176
AROUND_MS = 40
RECORD_CALLS = """
window.lanes = {arrows: [], labels: {}};
const paint = CanvasRenderingContext2D.prototype;
const {clearRect, moveTo, bezierCurveTo, fillText} = paint;
let from = [];
const isLanes = (context) => context.canvas.getAttribute("role") === "img";
paint.clearRect = function (...given) {
  if (isLanes(this)) window.lanes = {arrows: [], labels: {}};
  return clearRect.apply(this, given);
};
paint.moveTo = function (x, y) {
  from = [x, y];
  return moveTo.call(this, x, y);
};
paint.bezierCurveTo = function (...given) {
  window.lanes.arrows.push([from, given.slice(4)]);
  return bezierCurveTo.apply(this, given);
};
paint.fillText = function (text, x, y) {
  if (isLanes(this) && x === 0) window.lanes.labels[text] = y;
  return fillText.call(this, text, x, y);
};
"""


@pytest.fixture
def message(cluster):
    """A message of the recorded demo that another worker received."""
    received = cluster.get("timeline/events", run="demo", kind="MessageReceived", limit=1)[0]
    return cluster.get(f"timeline/event/{received['ref']}", run="demo")


def test_arrow_connects_the_lanes_of_cause_and_effect(page, visit, message):
    (cause,) = message["causes"]
    assert cause["node"] != message["node"]
    page.add_init_script(RECORD_CALLS)
    middle = round(message["at_ms"])
    from_ms, to_ms = middle - AROUND_MS, middle + AROUND_MS
    visit(f"timeline?run=demo&t={middle}&from={from_ms}&to={to_ms}&kind=MessageReceived")
    expect(page.get_by_role("img", name=re.compile("8 workers did"))).to_be_visible()
    page.get_by_role("region", name="List of events").get_by_role("button").first.click()
    expect(page.get_by_role("heading", name="Causes")).to_be_visible()
    assert parse_qs(urlsplit(page.url).fragment)["event"] == [message["ref"]]
    page.wait_for_function("window.lanes.arrows.length === 1")
    drawn = page.evaluate("window.lanes")
    width = page.get_by_role("img", name=re.compile("8 workers did")).bounding_box()["width"]

    def place(event):
        share = (event["at_ms"] - from_ms) / (to_ms - from_ms)
        return [LABEL_PX + share * (width - LABEL_PX), drawn["labels"][event["node"]]]

    [(begins, ends)] = drawn["arrows"]
    assert begins == pytest.approx(place(cause), abs=2)
    assert ends == pytest.approx(place(message), abs=8)
    assert begins[1] != ends[1]
