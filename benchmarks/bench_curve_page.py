"""Speed of the charts of a task with 1 M steps, in a real browser with a real coordinator.

Per frame the crosshair moves over the loss chart, or the zoomed window moves, with all visible
charts; a frame is late if it took more than 1/60 s and a half. Zooms are from the change of the
address to the drawn answer. `points_held` is the largest number of points that the page held,
with those beside a zoomed window.

Needs `make test` once (Chromium). The frames of a machine without a GPU are drawn by the CPU.
"""

import math
import random
import statistics
import tempfile
from pathlib import Path

from bench_timeline import EPOCH_NS, SECOND_NS, Clock, decide
from bench_web import address, browsing, spread95, until
from common import show
from processes import coordinator

from strata.coordinator.engine.kernel import Kernel
from strata.core.events import Envelope
from strata.core.generations.recovery import EnterGeneration
from strata.core.record.event_codec import CODEC
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.worker_facts import StepFinished
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.store.event_batches import pack
from strata.store.sqlite import SqliteStore

STEPS, BATCH, STEP_NS = 1_000_000, 1_000, SECOND_NS // 100
FRAMES, ZOOMS = 240, 30
TASK, WORKER = "bench-1", "w0"
LATE_MS = 1.5 * 1000 / 60

COUNTING = """
window.asking = 0;
window.asked = 0;
window.held = 0;
const ask = window.fetch;
window.fetch = (url, options) => {
  const address = typeof url === "string" ? url : url.url;
  if (!/curves\\/points/.test(address)) return ask(url, options);
  window.asking += 1;
  window.asked += 1;
  return ask(url, options).then(async (answer) => {
    const { curves } = await answer.clone().json();
    const held = curves.reduce((sum, each) => sum + each.x.length, 0);
    window.held = Math.max(window.held, held * document.querySelectorAll(".uplot").length);
    return answer;
  }).finally(() => { window.asking -= 1; });
};
"""

MOVED = """([frames, kind]) => new Promise((found) => {
  const plot = document.querySelector(".u-over");
  const box = plot.getBoundingClientRect();
  const times = [], scripts = [];
  const frame = (now) => {
    times.push(now);
    if (times.length > frames) {
      found({ intervals: times.slice(1).map((each, index) => each - times[index]), scripts });
      return;
    }
    const share = 0.5 + 0.45 * Math.sin(times.length / 15);
    const began = performance.now();
    if (kind === "crosshair") {
      const at = { clientX: box.left + share * box.width, clientY: box.top + 50, bubbles: true };
      plot.dispatchEvent(new MouseEvent("mousemove", at));
    } else {
      const from = Math.round(share * 800000);
      location.replace(location.hash.replace(/zoom=[^&]*/, `zoom=${from}..${from + 100000}`));
    }
    scripts.push(performance.now() - began);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""

ZOOMED = """([from, to]) => new Promise((found) => {
  const began = performance.now();
  const before = window.asked;
  let quiet = 0;
  location.replace(location.hash.replace(/zoom=[^&]*/, `zoom=${from}..${to}`));
  const look = () => {
    quiet = window.asked > before && window.asking === 0 ? quiet + 1 : 0;
    if (quiet === 2) found(performance.now() - began);
    else requestAnimationFrame(look);
  };
  look();
})"""


def batches():
    """The steps of one worker, with a loss that has a spike in every 10,000th step."""
    dice = random.Random(1)
    for first in range(0, STEPS, BATCH):
        events = []
        for step in range(first, first + BATCH):
            loss = 2 * math.exp(-step / 200_000) + 0.1 * dice.random()
            fact = StepFinished(
                step=step,
                data_s=0.001,
                compute_s=0.007,
                communication_s=0.001,
                wait_s=0.001,
                loss=loss + 5 * (step % 10_000 == 5_000),
                metrics={"lr": 0.1 * 0.999999**step, "grad_norm": 1 + dice.random()},
                generation=1,
            )
            mono_ns = (step + 1) * STEP_NS
            events.append(
                Envelope(seq=step + 1, wall_ns=EPOCH_NS + mono_ns, mono_ns=mono_ns, body=fact)
            )
        yield first, pack(CODEC, WORKER, 1, events)


def write_run(folder: Path) -> None:
    clock = Clock()
    with SqliteStore(folder / "log.db", CODEC) as store:
        kernel = Kernel(store, clock)
        kernel.start("bench", "bench")
        decide(kernel, SubmitTask(spec=TaskSpec(name="bench", external=True, worker_count=1)))
        decide(kernel, RegisterWorker(worker=WORKER, task=TASK, syncs=True))
        task = kernel.state.tasks[TASK]
        decide(
            kernel,
            EnterGeneration(worker=WORKER, incarnation=1, generation=task.generation),
        )
        for first, batch in batches():
            clock.now_ns = (first + BATCH) * STEP_NS
            kernel.ingest([batch])


def frames(page, kind: str) -> dict[str, object]:
    moved = page.evaluate(MOVED, [FRAMES, kind])
    intervals = moved["intervals"]
    return {
        "interval_ms": spread95(intervals),
        "script_ms": spread95(moved["scripts"]),
        "late_frames": sum(each > LATE_MS for each in intervals),
        "frames": len(intervals),
        "per_s": round(1000 / statistics.mean(intervals), 1),
    }


def measured(url: str, context) -> dict[str, object]:
    page = context.new_page()
    page.goto(f"{url}/#/tasks/{TASK}?t={EPOCH_NS // 10**6 + STEPS * 10}")
    until(page, "document.querySelectorAll('.u-over').length > 3 && window.asking === 0")
    page.wait_for_timeout(500)
    found: dict[str, object] = {
        "charts": page.evaluate("document.querySelectorAll('.uplot').length")
    }
    found["crosshair"] = frames(page, "crosshair")
    page.goto(page.url.replace("?", "?zoom=1..1000&", 1))
    page.wait_for_timeout(2000)
    dice = random.Random(3)
    zooms: list[float] = []
    for _ in range(ZOOMS):
        width = int(10 ** dice.uniform(2, 5.5))
        start = dice.randrange(STEPS - width)
        zooms.append(page.evaluate(ZOOMED, [start, start + width]))
    found["zoom_ms"] = spread95(zooms)
    found["moving_window"] = frames(page, "window")
    found["points_held"] = page.evaluate("window.held")
    heap = "performance.memory ? performance.memory.usedJSHeapSize / 1e6 : null"
    found["heap_mb"] = round(page.evaluate(heap), 1)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder)
        with coordinator(folder) as server, browsing() as context:
            context.add_init_script(COUNTING)
            found = measured(address(folder), context) | {"coordinator_mb": server.rss_mb()}
    show("curve_page", {"steps": STEPS} | found)


if __name__ == "__main__":
    main()
