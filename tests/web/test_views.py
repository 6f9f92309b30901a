"""Guards every view in a browser, with a real coordinator and real workers that are killed."""

import re

import pytest
from playwright.sync_api import expect

from tests.cli.conftest import until
from tests.web.conftest import START_S, TIMEOUT_MS, WORKERS

expect.set_options(timeout=TIMEOUT_MS)


def row(page, name):
    return page.get_by_role("row").filter(has_text=name)


def test_overview_shows_metrics_tasks_and_events(visit, cluster):
    page = visit("overview")
    expect(page.get_by_role("heading", name="Active workers")).to_be_visible()
    expect(page.locator(".text-xl").first).to_contain_text(f"of {WORKERS}")
    expect(row(page, cluster.task)).to_contain_text("running")
    assert page.locator("canvas").count() >= 5
    page.get_by_title("GenerationChanged").first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="GenerationChanged")).to_be_visible()


def test_steps_update_without_a_reload(visit, cluster):
    page = visit("overview")
    steps = row(page, cluster.task).get_by_role("cell").nth(3)
    expect(steps).to_have_text(re.compile(r"\d"))
    before = steps.inner_text()
    expect(steps).not_to_have_text(before)


def test_killed_worker_is_replaced(visit, cluster):
    page = visit("workers")
    name = f"{cluster.task}-w1"
    expect(row(page, name)).to_contain_text("active")
    before = cluster.get(f"workers/{name}")["incarnation"]
    cluster.kill(name)
    until(lambda: cluster.get(f"workers/{name}")["incarnation"] > before, 60)
    expect(row(page, name)).to_contain_text("active")
    visit(f"workers/{name}")
    incarnation = page.locator("dt", has_text="Incarnation").locator("xpath=following-sibling::dd")
    expect(incarnation).to_have_text(str(cluster.get(f"workers/{name}")["incarnation"]))
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    expect(page.get_by_text(re.compile("declared lost")).first).to_be_visible()


def test_workers_are_filtered_by_name_and_status(visit, cluster):
    page = visit("workers")
    expect(page.get_by_role("img", name=re.compile("workers by state"))).to_be_visible()
    page.get_by_label("Search workers").fill("w2")
    expect(page.get_by_role("link", name=re.compile("-w"))).to_have_count(1)
    expect(page).to_have_url(re.compile("q=w2"))
    page.get_by_label("Search workers").fill("")
    page.get_by_label("Status").select_option("failed")
    expect(row(page, f"{cluster.task}-w2")).to_have_count(0)


def test_dataset_shows_owners_and_samples(visit):
    page = visit("data")
    page.get_by_role("link", name="noise").click()
    expect(page.get_by_role("heading", name="Shard owners")).to_be_visible()
    expect(page.get_by_text(re.compile(r"leased \d"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("image, 8"))).not_to_have_count(0)


def test_shard_table_has_pages_with_ranges_and_owners(visit, cluster):
    page = visit("data/noise")
    shards = page.get_by_role("table", name="Shards", exact=True)
    expect(shards.get_by_role("row")).to_have_count(51)
    shards_by_id = {
        each["shard_id"]: each for each in cluster.get("datasets/noise/shards", limit=1000)
    }
    page.get_by_role("button", name="Next 50").click()
    expect(page).to_have_url(re.compile("shard=50"))
    cells = shards.get_by_role("row").nth(1).get_by_role("cell")
    expect(cells.nth(0)).to_have_text("50")
    assert shards_by_id[50]["end_index"] - shards_by_id[50]["start_index"] == 1
    expect(cells.nth(1)).to_have_text(str(shards_by_id[50]["start_index"]))
    expect(cells.nth(4)).to_have_text(shards_by_id[50]["worker_id"])
    page.get_by_label("Shard number").fill("255")
    page.get_by_role("button", name="Go to shard").click()
    expect(shards.get_by_role("row").last.get_by_role("cell").first).to_have_text("255")
    expect(page.get_by_role("button", name="Next 50")).to_be_disabled()


def test_sample_links_to_its_shard_and_its_owner(visit, cluster):
    page = visit("data/noise")
    card = (
        page.get_by_role("listitem").filter(has=page.get_by_text(re.compile(r"^sample \d+"))).first
    )
    card.get_by_role("button", name=re.compile("shard")).click()
    shard = re.search(r"shard=(\d+)", page.url)[1]
    owner = card.get_by_role("link").inner_text()
    shards = page.get_by_role("table", name="Shards", exact=True)
    expect(shards.get_by_role("row", name=re.compile(rf"^{shard} "))).to_contain_text(owner)


def test_requested_checkpoint_completes_and_is_verified(visit, cluster):
    page = visit("checkpoints")
    page.get_by_role("button", name=f"Save {cluster.task} now").click()
    expect(page.get_by_role("row").filter(has_text="completed").first).to_be_visible()
    page.get_by_role("link", name=re.compile("step-")).first.click()
    expect(page.get_by_role("heading", name="Parts by rank")).to_be_visible()
    sizes = page.get_by_role("region", name="Details").get_by_role("definition")
    expect(sizes.filter(has_text=re.compile(r"^\d.* [KM]?B$")).first).to_be_visible()
    expect(sizes.filter(has_text=f"{WORKERS} of {WORKERS}")).to_be_visible()
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text(re.compile("as saved"))).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Parts by rank")).to_have_count(0)


def test_barriers_show_rounds_and_late_arrivals(visit, cluster):
    until(lambda: cluster.get("barriers"), 60)
    page = visit("barriers")
    expect(row(page, "every-twenty").first).to_be_visible()
    expect(page.get_by_role("table", name="Late arrivals")).to_be_visible()


def test_task_is_submitted_stopped_and_submitted_again(visit, cluster):
    page = visit("tasks")
    page.get_by_role("link", name="Submit a task").click()
    page.get_by_label("Config").fill('{"a": ')
    expect(page.get_by_role("alert").first).to_be_visible()
    page.get_by_label("Name").fill("from the page")
    page.get_by_label("Config").fill('{"step_s": 0.2}')
    page.get_by_label("Script or module").fill("train.py")
    page.get_by_label("Workers", exact=True).fill("100")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text(re.compile("needs 100 slots"))).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name=re.compile("its workers save first")).click()
    expect(page.get_by_role("definition").filter(has_text="stopped").first).to_be_visible()
    page.get_by_role("button", name="Submit again").click()
    expect(page.get_by_label("Name")).to_have_value("from the page")
    expect(page.get_by_label("Config")).to_have_value(re.compile('"step_s": 0.2'))


def test_logs_are_followed_searched_and_escaped(visit, cluster):
    page = visit(f"logs?task={cluster.task}")
    expect(page.get_by_text(re.compile(r"step \d+: mean")).last).to_be_visible()
    assert page.title() == "Logs · Strata"
    page.get_by_label("Search").fill("document.title")
    expect(page.get_by_text("<script>document.title = 'broken'</script>").first).to_be_visible()
    page.get_by_label("Search").fill("^bell")
    page.get_by_role("button", name=".*").click()
    expect(page.get_by_text("bell ␇ and red").first).to_be_visible()
    page.get_by_label("Search").fill("(")
    expect(page.get_by_role("alert")).to_contain_text("Not a regular expression")


def test_line_of_a_megabyte_is_cut_and_can_be_downloaded(visit, cluster):
    page = visit(f"logs?task={cluster.task}&q=xxxx")
    line = page.get_by_text(re.compile("more characters")).first
    expect(line).to_be_visible()
    line.click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download").last.click()
    assert downloading.value.path().stat().st_size > 60_000


def test_scrolling_up_pauses_the_log(visit):
    page = visit("logs")
    tail = page.get_by_role("log")
    expect(tail.get_by_role("button")).not_to_have_count(0)
    for _ in range(40):  # wait for enough lines to scroll
        if tail.evaluate("e => e.scrollHeight > e.clientHeight + 200"):
            break
        page.wait_for_timeout(500)
    tail.evaluate("e => e.scrollTo({top: 0})")
    expect(page.get_by_role("button", name=re.compile(r"new ↓"))).to_be_visible()
    page.get_by_role("button", name=re.compile(r"new ↓")).click()
    expect(page.get_by_role("button", name=re.compile(r"new ↓"))).to_have_count(0)


def test_timeline_shows_lanes_events_and_causes(visit, cluster):
    name = f"{cluster.task}-w2"
    before = cluster.get(f"workers/{name}")["incarnation"]
    cluster.kill(name)
    until(lambda: cluster.get(f"workers/{name}")["incarnation"] > before, 60)
    page = visit("timeline?find=kind%3DWorkerLost")
    expect(page.get_by_role("img", name=re.compile("workers did"))).to_be_visible()
    page.get_by_label("Find: kind=WorkerLost").press("Enter")
    expect(page.get_by_role("heading", name="WorkerLost")).to_be_visible()
    expect(page.get_by_role("heading", name="Causes")).to_be_visible()
    page.get_by_role("button", name="Why?").click()
    expect(page.get_by_text(re.compile("signal 9")).first).to_be_visible()
    export = page.get_by_role("link", name="Perfetto").get_attribute("href")
    assert "traceEvents" in cluster.http.get(export).text[:2000]


def test_timeline_has_keyboard_shortcuts(visit):
    page = visit("timeline")
    expect(page.get_by_role("img", name=re.compile("workers did"))).to_be_visible()
    page.keyboard.press("w")
    expect(page).to_have_url(re.compile(r"from=\d+"))
    first = page.url
    page.keyboard.press("ArrowLeft")
    expect(page).not_to_have_url(first)


def test_settings_show_hosts_and_change_the_theme(visit, cluster):
    page = visit("settings")
    expect(page.get_by_text("heartbeat_timeout_s")).to_be_visible()
    expect(row(page, "host-a")).to_contain_text("up")
    page.get_by_role("radio", name="light").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_host_shows_charts_of_its_recorded_health_at_any_moment(visit, cluster):
    def measured():
        known = {each["id"]: each for each in cluster.get("hosts")}
        return known["host-a"] if known["host-a"]["measured_at"] else None

    until(measured, START_S)
    host = measured()
    page = visit("settings")
    page.get_by_role("button", name="Charts of host-a").click()
    charts = page.get_by_role("region", name=re.compile("Health of host-a"))
    expect(charts.get_by_role("img", name=re.compile("Load, newest [0-9]"))).to_be_visible()
    expect(charts.get_by_role("img", name=re.compile("Memory available"))).to_be_visible()
    visit(f"settings?host=host-a&t={host['measured_at'] + 1}")
    expect(row(page, "host-a")).to_contain_text("up")
    expect(charts.get_by_role("img", name=re.compile("Load, newest [0-9]"))).to_be_visible()
    visit(f"settings?t={host['measured_at'] - 3_600_000}")
    expect(row(page, "host-a")).to_have_count(0)


@pytest.mark.parametrize("view", ["overview", "workers", "logs", "tasks"])
def test_view_shows_the_moment_of_the_time_cursor(visit, view):
    page = visit(view)
    strip = page.get_by_role("slider", name="Moment shown")
    expect(strip).to_be_visible()
    strip.press("Home")
    expect(page).to_have_url(re.compile(r"t=\d+"))
    expect(page.get_by_role("status").filter(has_text="past")).to_be_visible()
    page.keyboard.press("l")
    expect(page).not_to_have_url(re.compile(r"t=\d+"))
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()


def test_palette_finds_a_worker_and_back_returns(visit, cluster):
    page = visit("overview")
    expect(row(page, cluster.task)).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill(f"{cluster.task}-w0")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"workers/{cluster.task}-w0"))
    page.go_back()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_slash_focuses_the_search_and_question_mark_opens_the_help(visit):
    page = visit("workers")
    expect(page.get_by_label("Search workers")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search workers")).to_be_focused()
    page.get_by_label("Search workers").blur()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_requests_can_be_copied_as_curl(visit, page, cluster, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(f"tasks/{cluster.task}")
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"curl '{cluster.url}/api/tasks/{cluster.task}'"


def test_sort_order_is_in_the_address(visit, cluster):
    page = visit("workers")
    expect(row(page, f"{cluster.task}-w0")).to_be_visible()
    by_name = page.get_by_role("button", name="Worker", exact=True)
    by_name.click()
    by_name.click()
    expect(page).to_have_url(re.compile("sort=-worker"))
    page.reload()
    expect(page.get_by_role("row").nth(1)).to_contain_text(f"{cluster.task}-w{WORKERS - 1}")


def test_drawer_takes_the_focus_and_gives_it_back(visit):
    page = visit("timeline?kind=WorkerRegistered")
    event = page.get_by_role("region", name="List of events").get_by_role("button").first
    event.click()
    drawer = page.get_by_role("complementary", name="WorkerRegistered")
    expect(drawer).to_be_focused()
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    expect(event).to_be_focused()


def test_worker_of_a_large_task_has_its_lane(visit, cluster):
    name = f"{cluster.task}-w0"
    with visit("overview").expect_response(re.compile(f"timeline/lanes.*node={name}")) as answer:
        page = visit(f"workers/{name}")
    assert [lane["node"] for lane in answer.value.json()["lanes"]] == [name]
    expect(page.get_by_role("img", name=re.compile("^What 1 worker did"))).to_be_visible()


def test_glossary_explains_a_word(visit, cluster):
    page = visit(f"tasks/{cluster.task}")
    page.get_by_role("button", name="Generation").click()
    glossary = page.get_by_role("dialog", name="Glossary")
    expect(glossary).to_contain_text("the next generation starts")
    page.keyboard.press("Escape")
    expect(glossary).to_have_count(0)
    expect(page.get_by_role("button", name="Generation")).to_be_focused()
