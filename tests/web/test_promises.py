"""Guards what the seed documents promise about the dashboard, in a browser with real workers."""

import re

from playwright.sync_api import expect

from tests.cli.conftest import until
from tests.web.conftest import TIMEOUT_MS, WORKERS

expect.set_options(timeout=TIMEOUT_MS)


def colour(locator):
    return locator.evaluate("element => getComputedStyle(element).color")


def test_overview_charts_the_four_figures(visit):
    page = visit("overview")
    for title in ("Checkpoint throughput", "Coordinator", "Barrier latency", "Shard assignment"):
        expect(page.get_by_role("heading", name=re.compile(title)).first).to_be_visible()
        chart = page.get_by_label(re.compile(f"{title}.* over the last minutes, now"))
        expect(chart.first).to_be_visible()
    rate = page.get_by_label(re.compile(r"Coordinator.* over the last minutes, now [1-9]"))
    expect(rate.first).to_be_visible()


def test_workers_have_a_heatmap_by_status_and_by_gpu(visit):
    page = visit("workers")
    expect(page.get_by_role("img", name=f"{WORKERS} workers by state")).to_be_visible()
    legend = page.locator("main")
    for status in ("active", "idle", "checkpointing", "recovering", "failed"):
        expect(legend.get_by_text(status, exact=True).first).to_be_attached()
    page = visit("workers?by=gpu")
    expect(page.get_by_role("img", name=f"{WORKERS} workers by gpu")).to_be_visible()


def test_worker_table_has_status_heartbeat_place_and_hardware(visit, cluster):
    page = visit("workers")
    for column in ("Status", "GPUs", "CPU", "Memory", "Network", "Epoch", "Shards"):
        header = page.get_by_role("columnheader", name=re.compile(column))
        expect(header.first).to_be_visible()
    heartbeat = page.get_by_role("columnheader", name="Last heartbeat")
    expect(heartbeat).to_be_visible()
    row = page.get_by_role("row").filter(has_text=f"{cluster.task}-w0")
    expect(row).to_contain_text(re.compile("active|checkpointing"))
    expect(row).to_contain_text(re.compile("MB"))


def test_checkpoint_row_has_path_size_and_worker(visit, cluster):
    cluster.http.post(f"/api/tasks/{cluster.task}/checkpoint").raise_for_status()
    until(lambda: [c for c in cluster.get("checkpoints") if c["status"] == "completed"], 60)
    saved = next(c for c in cluster.get("checkpoints") if c["status"] == "completed")
    page = visit("checkpoints")
    row = page.get_by_role("row").filter(has_text=saved["id"])
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text(saved["worker_id"])
    expect(row).to_contain_text(re.compile(r"\d (B|kB|KB|MB)"))
    expect(row).to_contain_text(saved["path"])


def test_log_lines_are_coloured_by_level_and_filtered_by_worker(visit, cluster):
    name = f"{cluster.task}-w2"
    before = cluster.get(f"workers/{name}")["incarnation"]
    cluster.kill(name)
    until(lambda: cluster.get(f"workers/{name}")["incarnation"] > before, 60)
    page = visit("logs?level=warn")
    bad = page.get_by_role("log").locator("span", has_text=re.compile("^(warn|error)$"))
    expect(bad.first).to_be_visible()
    warning_colour = colour(bad.first)
    page = visit(f"logs?worker={name}")
    plain = page.get_by_role("log").locator("span", has_text=re.compile("^info$"))
    expect(plain.first).to_be_visible()
    assert colour(plain.first) != warning_colour
    writers = page.get_by_role("log").locator("span[title]")
    assert {writers.nth(n).get_attribute("title") for n in range(writers.count())} == {name}
