"""Size and speed of the dashboard, in a real browser with a real coordinator.

Needs `make test` once (Chromium, the page's packages). Figures inside the browser are script time;
the coordinator's are its CPU time, beside a run without readers.
"""

import asyncio
import gzip
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
from bench_timeline import EPOCH_NS, PER_SECOND, write_run
from bench_timeline import WORKERS as RUN_WORKERS
from common import show, spread
from fleet import Fleet
from playwright.sync_api import sync_playwright
from processes import Server, coordinator

from strata.coordinator.rest import page_files as files

WEB = Path(__file__).parents[1] / "web"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
WORKERS, TABS, WATCHED_S = 1_000, 20, 15.0
TASKS = 20
SCRUBBED_EVENTS, SCRUBS = 1_000_000, 40
POLLS = (
    ("/api/timeline/span", 30.0),
    ("/api/timeline/density?buckets=300", 15.0),
    ("/api/metrics/history", 3600.0),
)
"""What an open overview asks for besides the stream, and how often."""

NOTED = """(name) => new Promise((found) => {
  const look = () => {
    if (!document.body.innerText.includes(name)) return false;
    requestAnimationFrame(() => requestAnimationFrame(() => found(Date.now())));
    return true;
  };
  const observer = new MutationObserver(() => look() && observer.disconnect());
  const all = {subtree: true, childList: true, characterData: true};
  if (!look()) observer.observe(document.body, all);
})"""

COUNTING = """
window.asking = {state: 0, all: 0};
const ask = window.fetch;
window.fetch = (url, options) => {
  const counted = [];
  if (/timeline\\/(at|lanes)/.test(url)) counted.push("state");
  if (/timeline\\/(at|lanes|events|facts|metrics)|logs\\?/.test(url)) counted.push("all");
  for (const name of counted) window.asking[name] += 1;
  return ask(url, options).finally(() => {
    for (const name of counted) window.asking[name] -= 1;
  });
};
"""
"""Counts the requests under way for a moment: its state and the lanes around it; all of them."""

SCRUBBED = """(moment) => new Promise((found) => {
  const began = performance.now();
  const drawn = {state: [], all: []};
  const look = (asked) => {
    for (const [name, frames] of Object.entries(drawn)) {
      if (window.asking[name] > 0) frames.length = 0;
      else if (asked) frames.push(performance.now() - began);
    }
    if (drawn.all.length > 8) found({state: drawn.state[2], all: drawn.all[2]});
    else requestAnimationFrame(() => look(asked || window.asking.state > 0));
  };
  location.hash = location.hash.replace(/t=\\d+/, `t=${moment}`);
  look(false);
})"""
"""Moves the cursor, and waits until what was asked for is there and drawn: the second frame after
the last answer. What is asked for only then begins within the eight frames that are waited."""


def first_scripts() -> set[str]:
    """The scripts that the first view needs."""
    loaded = files.load()
    entry = re.search(r"/assets/index-[\w-]+\.js", loaded["/"].content.decode())[0]
    overview = next(path for path in loaded if re.match(r"/assets/overview-", path))
    scripts = {entry, overview}
    for path in (entry, overview):
        text = loaded[path].content.decode()
        named = re.findall(r'(?:from|import)"\./([^"]+\.js)"', text)
        scripts |= {f"/assets/{name}" for name in named}
    return scripts


def sizes() -> dict[str, int]:
    """Bytes over the wire, with gzip: the scripts of the first view, and all styles."""
    small = {path: len(gzip.compress(file.content)) for path, file in files.load().items()}
    return {
        "initial_js_bytes": sum(small[path] for path in first_scripts()),
        "css_bytes": sum(size for path, size in small.items() if path.endswith(".css")),
    }


def bundle(folder: Path) -> str:
    """The measurements inside the browser, as one script."""
    out = folder / "bench.js"
    tool = WEB / "node_modules/rolldown/bin/cli.mjs"
    options = ["--format", "iife", "--name", "bench", "--file", str(out)]
    command = ["node", str(tool), str(WEB / "bench/entry.ts"), *options]
    subprocess.run(command, check=True, capture_output=True)
    return out.read_text("utf-8") + (WEB / "bench/measure.js").read_text("utf-8")


@contextmanager
def browsing():
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield launched.new_context(locale="en-GB", viewport={"width": 1440, "height": 900})
        launched.close()


def until(page, expression: str) -> object:
    """Wait for a condition in the page; it is evaluated from outside, since the page forbids
    eval."""
    while not (found := page.evaluate(expression)):
        page.wait_for_timeout(10)
    return found


def first_paint(context, url: str) -> list[float]:
    """Milliseconds from the request to the first paint with content."""
    painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    found = []
    for _ in range(5):
        page = context.new_page()
        page.goto(url)
        found.append(until(page, painted))
        page.close()
    return found


def event_to_pixel(context, url: str) -> list[float]:
    """Milliseconds from a durable fact to its pixels."""
    page = context.new_page()
    page.goto(url)
    page.get_by_role("heading", name="Overview").wait_for()
    took = []
    for number in range(TASKS):
        name = f"seen-{number}"
        created = httpx.post(f"{url}/api/tasks", json={"name": name}, trust_env=False).json()
        durable_ms = time.time() * 1e3
        took.append(page.evaluate(NOTED, created["task_id"]) - durable_ms)
        httpx.post(f"{url}/api/tasks/{created['task_id']}/stop", trust_env=False)
    page.close()
    return took


async def tabs(url: str, count: int, seconds: float) -> int:
    """Open this many overviews for a while; returns the bytes of their streams.

    Each has its own browser, without cached files of the page.
    """
    taken = 0

    async def stream(client):
        nonlocal taken
        for path in ("/", *sorted(first_scripts())):
            await client.get(path)
        async with client.stream("GET", "/api/live") as answer:
            async for chunk in answer.aiter_raw():
                taken += len(chunk)

    async def poll(client, path, every_s):
        while True:
            await client.get(path)
            await asyncio.sleep(every_s)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, trust_env=False, timeout=60, limits=limits
    ) as client:
        doing = [asyncio.create_task(stream(client)) for _ in range(count)]
        doing += [asyncio.create_task(poll(client, *each)) for each in POLLS for _ in range(count)]
        await asyncio.sleep(seconds)
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
    return taken


def tab_cost(folder: Path) -> dict[str, float]:
    """CPU of the coordinator with 1,000 workers: without tabs, while they open, while open."""
    script = "import asyncio, bench_web as b; print(asyncio.run(b.tabs({!r}, {}, {})))"
    with coordinator(folder) as server:
        url = address(folder)
        fleet = Fleet(server.port, WORKERS)
        without = watched(server, fleet)
        command = [sys.executable, "-c", script.format(url, TABS, 2 * WATCHED_S + 5)]
        readers = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent)
        opening, opened = watched(server, fleet), watched(server, fleet)
        while readers.poll() is None:
            fleet.beat_evenly(1.0)
        taken = int(readers.stdout.read())
        fleet.swarm.close()
    return {
        "workers": WORKERS,
        "tabs": TABS,
        "core_without_tabs": round(without, 4),
        "core_of_tabs_that_open": round(opening - without, 4),
        "core_of_open_tabs": round(opened - without, 4),
        "kilobytes_per_s_and_tab": round(taken / TABS / (2 * WATCHED_S + 5) / 1e3, 1),
    }


def watched(server: Server, fleet: Fleet) -> float:
    """The share of a core that the coordinator uses while all workers send heartbeats."""
    used_s, began = server.cpu_s(), time.perf_counter()
    while time.perf_counter() - began < WATCHED_S:
        fleet.beat_evenly(1.0)
    return (server.cpu_s() - used_s) / (time.perf_counter() - began)


def address(folder: Path) -> str:
    """The address of the page of a coordinator over a folder."""
    return re.search(r"http://\S+", (folder / "stderr.txt").read_text("utf-8"))[0]


def scrub(folder: Path) -> dict[str, object]:
    """Milliseconds from a move of the cursor, anywhere in 1 M events, to its pixels.

    `state` is the state of the views at that moment, `all` also the log lines, facts and figures
    before it.
    """
    folder.mkdir()
    seconds = SCRUBBED_EVENTS // (RUN_WORKERS * PER_SECOND)
    found: dict[str, object] = {"events": write_run(folder, seconds)["events"]}
    dice = random.Random(7)
    with coordinator(folder) as server, browsing() as context:
        context.add_init_script(COUNTING)
        for view in ("overview", "timeline"):
            page = context.new_page()
            page.goto(f"{address(folder)}/#/{view}?t={EPOCH_NS // 10**6}")
            page.get_by_role("slider", name="Moment shown").wait_for()
            until(page, "window.asking.all === 0")
            used_s = server.cpu_s()
            moments = [EPOCH_NS // 10**6 + dice.randrange(seconds * 1000) for _ in range(SCRUBS)]
            moves = [page.evaluate(SCRUBBED, moment) for moment in moments]
            found[view] = {
                **{name: spread95([move[name] for move in moves]) for name in ("state", "all")},
                "coordinator_cpu": round((server.cpu_s() - used_s) / SCRUBS * 1e3, 1),
            }
            page.close()
    return found


def spread95(values: list[float]) -> dict[str, float]:
    """The usual spread, and the 95th percentile, for which goals are set."""
    return spread(values) | {"p95": round(statistics.quantiles(values, n=20)[-1], 1)}


def in_browser(folder: Path) -> dict[str, object]:
    with coordinator(folder) as _, browsing() as context:
        url = address(folder)
        paint = first_paint(context, url)
        pixel = event_to_pixel(context, url)
        page = context.new_page()
        page.goto(url)
        measured = page.evaluate(bundle(folder))
    return {
        "first_paint_ms": spread(paint),
        "event_to_pixel_ms": spread95(pixel),
        "heatmap_10000_cells_500_changed_ms": spread(measured["heatmap"]),
        "search_100000_lines_ms": spread(measured["search"]["text"]),
        "search_100000_lines_regex_ms": spread(measured["search"]["regex"]),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = sizes() | in_browser(folder / "browser")
        result["scrub_ms"] = scrub(folder / "scrub")
        result["tabs"] = tab_cost(folder / "tabs")
    show("web", result)


if __name__ == "__main__":
    main()
