"""Guards the curves of tasks in a browser: the charts show what real workers logged, zooming, the
time cursor, markers, logged images, and the comparison of two tasks."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.cli.conftest import until
from tests.web.test_looks import AXE
from tests.web.test_views import expect

LEARNER = Path(__file__).parent / "learner.py"
STEPS, NAN_AT, SAVE_AT, KILL_AT = 200, 30, 40, 70


@pytest.fixture(scope="module")
def learned(cluster):
    """Two tasks that have ended; the first saved a checkpoint, lost a worker and logged a NaN."""
    first = cluster.submit(
        "learn", workers=2, script=LEARNER, steps=STEPS, step_s=0.04, nan_at=NAN_AT, lr=0.5
    )
    until(lambda: steps_of(cluster, first) > SAVE_AT, 120)
    cluster.http.post(f"/api/tasks/{first}/checkpoint").raise_for_status()
    until(lambda: steps_of(cluster, first) > KILL_AT, 60)
    cluster.kill(f"{first}-w1")
    second = cluster.submit("learn", workers=2, script=LEARNER, steps=60, lr=0.9, width=128)
    until(lambda: all(status_of(cluster, task) == "completed" for task in (first, second)), 120)
    return first, second


def status_of(cluster, task):
    return cluster.get(f"tasks/{task}")["status"]


def steps_of(cluster, task):
    return cluster.get(f"tasks/{task}")["committed_steps"]


def written(cluster, task):
    """The mean loss of each step, from the files that the workers wrote."""
    losses = {}
    for path in cluster.folder.glob(f"logged-{task}-*.jsonl"):
        for step, loss in map(json.loads, path.read_text("utf-8").splitlines()):
            losses.setdefault(step, []).append(loss)
    return {step: sum(each) / len(each) for step, each in losses.items()}


def chart(page, name):
    return page.get_by_role("group", name=name, exact=True).get_by_role("slider")


def drag(page, plot, start, end):
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, middle, steps=8)
    page.mouse.up()


def plot_of(page, name):
    return chart(page, name).locator(".u-over")


def test_loss_chart_shows_the_values_that_the_script_wrote(visit, cluster, learned):
    losses = written(cluster, learned[0])
    assert len(losses) == STEPS
    page = visit(f"tasks/{learned[0]}")
    loss = chart(page, "loss")
    expect(loss).to_have_attribute("aria-valuemax", str(STEPS))
    expect(page.get_by_text(f"NaN or infinite at step {NAN_AT}").first).to_be_visible()
    shown = {}
    loss.press("Home")
    for _ in range(STEPS + 5):
        step, value = re.match(
            r"step ([\d,]+) · [\d:]+ · (\S+)", loss.get_attribute("aria-valuetext")
        ).groups()
        shown[int(step)] = value
        loss.press("ArrowLeft")
    assert shown.pop(NAN_AT) == "–"
    assert set(shown) == set(losses) - {NAN_AT}
    for step, value in shown.items():
        assert math.isclose(float(value), losses[step], rel_tol=1e-5), step


def test_values_of_a_chart_are_a_table(visit, cluster, learned):
    losses = written(cluster, learned[1])
    page = visit(f"tasks/{learned[1]}")
    page.get_by_role("button", name="Values of loss", exact=True).click()
    rows = page.get_by_role("table", name="Values of loss").get_by_role("row")
    expect(rows.nth(1).get_by_role("cell").first).to_have_text("step 0")
    for number in range(1, 10):
        place, value = rows.nth(number).get_by_role("cell").all_inner_texts()[:2]
        assert math.isclose(float(value), losses[int(place.split()[1])], rel_tol=1e-5)


def test_zoom_is_shared_kept_in_the_address_and_reset(visit, learned):
    page = visit(f"tasks/{learned[0]}")
    expect(chart(page, "lr")).to_have_attribute("aria-valuemax", str(STEPS))
    drag(page, plot_of(page, "loss"), 0.25, 0.5)
    expect(page).to_have_url(re.compile(r"zoom=[\d.]+"))
    for name in ("loss", "lr"):
        expect(chart(page, name)).to_have_attribute("aria-valuemin", re.compile(r"^[45]\d(\.|$)"))
    page.reload()
    expect(chart(page, "lr")).to_have_attribute("aria-valuemin", re.compile(r"^[45]\d(\.|$)"))
    plot_of(page, "lr").dblclick()
    expect(page).not_to_have_url(re.compile("zoom="))
    expect(chart(page, "loss")).to_have_attribute("aria-valuemin", "0")
    expect(page).not_to_have_url(re.compile(r"[?&]t="))


def test_click_on_a_point_shows_its_moment_in_all_views(visit, cluster, learned):
    points = cluster.get("timeline/curves/points", task=learned[0], name="loss")["curves"][0]
    page = visit(f"tasks/{learned[0]}")
    expect(chart(page, "loss")).to_have_attribute("aria-valuemax", str(STEPS))
    plot = plot_of(page, "loss")
    box = plot.bounding_box()
    plot.click(position={"x": box["width"] / 2, "y": 40})
    expect(page).to_have_url(re.compile(r"[?&]t=\d+"))
    moment = int(re.search(r"[?&]t=(\d+)", page.url)[1])
    middle = [math.ceil(at) for at in points["time_ms"][STEPS // 2 - 2 : STEPS // 2 + 3]]
    assert moment in middle
    expect(page.get_by_role("status").filter(has_text="past")).to_be_visible()
    status = page.locator("dt", has_text="Status").first.locator("xpath=following-sibling::dd")
    expect(status).to_contain_text(re.compile("running|recovering"))


def test_markers_tell_what_happened_and_lead_to_its_moment(visit, cluster, learned):
    page = visit(f"tasks/{learned[0]}")
    group = page.get_by_role("group", name="loss", exact=True)
    lost = group.get_by_role("button", name=re.compile(f"{learned[0]}-w1 was declared lost"))
    expect(lost.first).to_be_visible()
    expect(lost.first).to_contain_text("✕")
    saved = group.get_by_role("button", name=re.compile("checkpoint .* committed"))
    expect(saved.first).to_be_visible()
    lost.first.hover()
    expect(group.get_by_role("tooltip")).to_contain_text("signal 9")
    lost.first.click()
    expect(page).to_have_url(re.compile(r"[?&]t=\d+"))


def test_axis_scale_and_smoothing_are_in_the_address(visit, learned):
    page = visit(f"tasks/{learned[0]}")
    page.get_by_role("radio", name="samples").check(force=True)
    expect(chart(page, "loss")).to_have_attribute("aria-valuemax", str(STEPS * 8))
    page.get_by_role("radio", name="log").check(force=True)
    page.get_by_label("Smoothing").fill("0.8")
    expect(page).to_have_url(re.compile(r"x=samples.*smooth=0\.8|smooth=0\.8.*x=samples"))
    page.reload()
    expect(page.get_by_role("radio", name="log")).to_be_checked()
    expect(page.get_by_label("Smoothing")).to_have_value("0.8")
    page.get_by_label("Find a metric").fill("grad")
    expect(page.get_by_role("group", name="grad_norm")).to_be_visible()
    expect(page.get_by_role("group", name="loss", exact=True)).to_have_count(0)


def test_logged_images_texts_and_histograms_follow_the_step(visit, learned):
    page = visit(f"tasks/{learned[0]}")
    image = page.get_by_role("img", name=f"ring after {STEPS} steps")
    image.scroll_into_view_if_needed()
    expect(image).to_be_visible()
    page.wait_for_function("e => e.naturalWidth === 24", arg=image.element_handle())
    expect(page.get_by_text(f"After {STEPS} steps the model answers")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("weights: 200 values"))).to_be_visible()
    page.get_by_role("slider", name="Step of the items").fill("0")
    expect(page.get_by_role("img", name="ring after 20 steps")).to_be_visible()
    expect(page.get_by_text("After 20 steps the model answers")).to_be_visible()


def test_running_task_grows_without_a_reload(visit, cluster):
    page = visit("overview")
    learning = page.get_by_role("region", name="Learning")
    expect(learning.get_by_role("link", name=cluster.task)).to_be_visible()
    loss = chart(page, "loss")
    expect(loss).to_have_attribute("aria-valuemax", re.compile(r"[1-9]"))
    before = loss.get_attribute("aria-valuemax")
    expect(loss).not_to_have_attribute("aria-valuemax", before)
    expect(learning.locator("dt", has_text="steps/s")).to_be_visible()


def test_hidden_page_asks_for_nothing(visit, cluster):
    page = visit(f"tasks/{cluster.task}")
    expect(chart(page, "loss")).to_have_attribute("aria-valuemax", re.compile(r"[1-9]"))
    hide = """hidden => {
      Object.defineProperty(document, 'visibilityState', {value: hidden, configurable: true});
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, "hidden")
    page.wait_for_timeout(1500)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(1500)
    assert [url for url in asked if "curves" in url] == []
    page.evaluate(hide, "visible")
    with page.expect_response(re.compile("curves/points")):
        pass


def test_comparison_overlays_runs_and_shows_what_differs(visit, cluster, learned):
    first, second = learned
    page = visit(f"tasks/{first}")
    page.get_by_role("link", name="compare", exact=True).click()
    page.get_by_label("Add a run").select_option(second)
    loss = chart(page, "loss")
    expect(loss).to_have_attribute("aria-label", re.compile(f"{first}: last .*{second}: last "))
    page.get_by_label("Only differences").check()
    table = page.get_by_role("region", name="Configs and last values")
    lr = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=re.compile("lr$")))
    expect(lr.first.get_by_role("cell")).to_have_text(["0.5", "0.9"])
    expect(table.get_by_text("tokens_per_sample")).to_have_count(0)
    page.get_by_label(f"Show {second}").uncheck()
    expect(loss).not_to_have_attribute("aria-label", re.compile(second))
    page.reload()
    expect(page.get_by_label(f"Show {second}")).not_to_be_checked()
    page.get_by_label(f"Show {second}").check()
    page.get_by_role("radio", name="time").check(force=True)
    expect(loss).to_have_attribute("aria-valuetext", re.compile(r"^\d+(\.\d+)? m?s\n"))
    expect(table.get_by_text("tokens_per_sample")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("view", ["task", "compare"])
def test_axe_finds_no_violation_in_charts(visit, learned, view, scheme):
    path = f"tasks/{learned[0]}" if view == "task" else f"compare?tasks={','.join(learned)}"
    page = visit(path)
    page.emulate_media(color_scheme=scheme)
    expect(chart(page, "loss")).to_have_attribute("aria-valuemax", str(STEPS))
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
