"""Metrics of a real engine with a real store, for the REST API, Prometheus and Grafana.

Values are compared with what the test did; the text format is checked by Prometheus' own tools."""

import asyncio
import json
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import msgspec
import psutil
import pytest

from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_store import LogStore
from strata.coordinator.metrics import task_series
from strata.coordinator.metrics.coordinator_metrics import Metrics, Probes
from strata.coordinator.metrics.exposition import CONTENT_TYPE, Exposition, labels
from strata.coordinator.rest.response_models import MetricsSnapshot
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint, ConfirmCheckpoint
from strata.core.cluster import CODEC
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.events import Now
from strata.core.generations.recovery import EnterGeneration
from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import ReportHost
from strata.core.state import DatasetSpec
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.host_agents import RegisterAgent
from strata.core.workers.worker_lifecycle import DeclareLost, RegisterWorker, ReportState
from strata.store.sqlite import SqliteStore
from tests.programs import program
from tests.tidy.test_resources import healthy

ROOT = Path(__file__).parents[2]
CONTRACT = {
    "checkpoint_throughput",
    "coordinator_rps",
    "active_workers",
    "total_workers",
    "barrier_latency_p99",
    "shard_assignment_time",
}


class Coordinator:
    """An engine with its metrics and log, as in the server."""

    def __init__(self, engine, heartbeats, logs):
        self.engine = engine
        self.heartbeats = heartbeats
        self.logs = logs
        self.sessions = 0
        self.metrics = Metrics(
            engine,
            heartbeats,
            Probes(inbox_depth=engine.inbox_depth, sessions=lambda: self.sessions, logs=logs.stats),
        )

    async def do(self, command):
        return await self.engine.submit(command)

    async def measure(self, health, agent="host-1"):
        """Record the health of an agent's host."""
        known = await self.do(RegisterAgent(agent=agent, hostname=agent))
        await self.do(ReportHost(agent=agent, incarnation=known.incarnation, health=health))

    async def form(self, workers=2, resources=None):
        """Form a task whose workers have registered, entered and train."""
        dataset = DatasetSpec(total_samples=1000, shard_size=10)
        await self.do(RegisterDataset(dataset="d", spec=dataset))
        spec = TaskSpec(name="demo", worker_count=workers, external=True)
        self.task = await self.do(SubmitTask(spec=spec))
        await self.do(AttachDataset(task=self.task.id, dataset="d"))
        self.workers = [
            await self.do(RegisterWorker(worker=f"w{i}", task=self.task.id)) for i in range(workers)
        ]
        for rank, worker in enumerate(self.workers):
            me = {"worker": worker.id, "incarnation": worker.incarnation}
            await self.do(EnterGeneration(**me, generation=self.task.generation))
            await self.do(ReportState(**me, state="training"))
            self.heartbeats.note(
                worker.id,
                LastHeartbeat(
                    worker.incarnation,
                    0,
                    step=7,
                    resources=resources or ResourceMetrics(),
                    loss=0.5 + rank,
                ),
            )

    def me(self, index):
        worker = self.workers[index]
        return {"worker": worker.id, "incarnation": worker.incarnation}

    async def save(self, size_bytes, took_s):
        """Save a checkpoint, with a delay."""
        begin = BeginCheckpoint(**self.me(0), generation=self.task.generation, step=5)
        checkpoint = await self.do(begin)
        await asyncio.sleep(took_s)
        for index in range(len(self.workers)):
            ack = {"checkpoint": checkpoint.id, "path": "p", "size_bytes": size_bytes}
            await self.do(AckPart(**self.me(index), **ack))
        confirm = ConfirmCheckpoint(task=self.task.id, checkpoint=checkpoint.id, path="m")
        await self.do(confirm)

    async def meet(self, gap_s):
        """Let every worker arrive at a barrier, one after the other."""
        for index in range(len(self.workers)):
            if index:
                await asyncio.sleep(gap_s)
            await self.do(ArriveAtBarrier(**self.me(index), barrier="b", request=1))


@asynccontextmanager
async def coordinator(folder, clock=read_clock):
    logs = LogStore(folder / "logs")
    with SqliteStore(folder / "log.db", CODEC) as store:
        kernel = Kernel(store, clock)
        kernel.start("test", "0")
        engine = Engine(kernel)
        engine.start()
        try:
            yield Coordinator(engine, Heartbeats(), logs)
        finally:
            await engine.stop()
            logs.close()


MEASURED = healthy(
    HostHealth,
    gpus=[healthy(GpuHealth, index=3, lost=False, throttle_reasons="sw_power_cap,hw_thermal")],
)


async def busy(running):
    """Change every metric."""
    gpu = GpuMetrics(0, "H200", 75.0, 2**30, 2**37)
    used = ResourceMetrics(
        cpu_percent=150.0,
        memory_used_bytes=2**20,
        gpu_metrics=[gpu],
        disk_read_bytes=1,
        disk_write_bytes=2,
        disk_free_bytes=3,
        network_rx_bytes=4,
        network_tx_bytes=5,
    )
    await running.form(resources=used)
    await running.measure(MEASURED)
    await running.save(1_000_000, 0.05)
    await running.meet(0.02)
    running.sessions = 2
    for _ in range(10):
        running.metrics.count_request("grpc")
    running.metrics.count_request("http", 5)
    running.logs.append(LogLine("info", "hello"))
    running.logs.flush()


def samples(page):
    """Each sample of a page by its name and labels."""
    rows = [row.rpartition(" ") for row in page.splitlines() if not row.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def test_metrics_are_null_before_the_first_measurement(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            return running.metrics.snapshot()

    snapshot = asyncio.run(scenario())
    assert snapshot == MetricsSnapshot(None, 0.0, 0, 0, None, None)
    assert set(msgspec.to_builtins(snapshot)) == CONTRACT


def test_metrics_match_what_happened(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            began_s = time.monotonic()
            await busy(running)
            took_s = time.monotonic() - began_s
            return running.metrics.snapshot(), took_s

    snapshot, took_s = asyncio.run(scenario())
    assert 2.0 / took_s <= snapshot.checkpoint_throughput <= 2.0 / 0.05
    assert 20 <= snapshot.barrier_latency_p99 <= took_s * 1000
    assert 0 < snapshot.shard_assignment_time < took_s * 1000
    assert (snapshot.active_workers, snapshot.total_workers) == (2, 2)
    assert snapshot.coordinator_rps == pytest.approx(15 / took_s, rel=0.5)


class Clock:
    """A clock that the test advances."""

    def __init__(self):
        self.now_ns = 10**12

    def __call__(self):
        return Now(self.now_ns, self.now_ns)

    def pass_s(self, seconds):
        self.now_ns += int(seconds * 1e9)


def test_requests_per_second_cover_the_last_ten_seconds(tmp_path):
    async def scenario():
        clock = Clock()
        async with coordinator(tmp_path, clock=clock) as running:
            rates = []
            for per_second in (100, 100, 0):
                for _ in range(10):
                    running.metrics.count_request("grpc", per_second)
                    clock.pass_s(1)
                rates.append(running.metrics.snapshot().coordinator_rps)
            return rates

    first, second, idle = asyncio.run(scenario())
    assert first == second == pytest.approx(100, rel=0.12)
    assert idle == 0.0


def test_assignment_time_is_that_of_its_command_only(tmp_path):
    """Two commands in one turn: the clock moves by 5 ms while the second is decided."""

    class Slow(Clock):
        reads = 0

        def __call__(self):
            self.reads += 1
            if self.slow and self.reads == 4:
                self.pass_s(0.005)
            return super().__call__()

        slow = False

    clock = Slow()
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        kernel = Kernel(store, clock)
        kernel.start("test", "0")
        dataset = DatasetSpec(total_samples=100, shard_size=10)
        spec = TaskSpec(name="demo", worker_count=1, external=True)
        setup = [RegisterDataset(dataset="d", spec=dataset), SubmitTask(spec=spec)]
        kernel.commit(kernel.decide(setup))
        register = RegisterWorker(worker="a", task="demo-1")
        kernel.commit(kernel.decide([register]))
        assert kernel.timings.assignment_ms is None
        clock.slow, clock.reads = True, 0
        # Reads: the turn, the state, the attachment, the registration that follows, the end.
        me = {"worker": "a", "incarnation": 1}
        turn = kernel.decide(
            [
                ReportState(**me, state="training"),
                AttachDataset(task="demo-1", dataset="d"),
                ReportState(**me, state="idle"),
            ]
        )
    kinds = [[event.kind for event in outcome.events] for outcome in turn.outcomes]
    assert kinds == [
        ["WorkerStateChanged"],
        ["DatasetAttached", "AssignmentChanged"],
        ["WorkerStateChanged"],
    ]
    assert kernel.timings.assignment_ms == pytest.approx(5.0)
    assert kernel.timings.assignment_s.count == 1


def test_worker_counts_survive_a_restart(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await running.form(3)
            await running.do(
                DeclareLost(**running.me(0), signal="heartbeat", reason="silent for 30 s")
            )
        async with coordinator(tmp_path) as running:
            return running.metrics.snapshot()

    snapshot = asyncio.run(scenario())
    assert (snapshot.active_workers, snapshot.total_workers) == (2, 2)


def test_metrics_page_matches_the_snapshot(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await busy(running)
            lost = DeclareLost(**running.me(1), signal="hang", reason="no steps")
            await running.do(lost)
            return running.metrics.snapshot(), samples(running.metrics.prometheus())

    snapshot, page = asyncio.run(scenario())
    assert page["strata_active_workers"] == snapshot.active_workers == 1
    assert page['strata_workers{state="training"}'] == 1
    assert page["strata_checkpoint_throughput_bytes_per_second"] == pytest.approx(
        snapshot.checkpoint_throughput * 1e6, rel=0.01
    )
    assert page["strata_barrier_latency_p99_seconds"] == pytest.approx(
        snapshot.barrier_latency_p99 / 1e3
    )
    assert page['strata_worker_losses_total{signal="hang"}'] == 1
    assert page['strata_worker_losses_total{signal="exit"}'] == 0
    assert page['strata_requests_total{kind="grpc"}'] == 10
    assert page['strata_requests_total{kind="http"}'] == 5
    assert page["strata_checkpoint_bytes_total"] == 2_000_000
    assert page["strata_barrier_release_seconds_count"] == 1
    assert page["strata_append_seconds_count"] > 0
    assert page["strata_sessions"] == 2
    assert page["strata_logs_lines"] == 1
    assert page["strata_log_position"] > 10
    me = 'worker="w0",task="demo-1"'
    assert page[f"strata_worker_cpu_ratio{{{me}}}"] == 1.5
    assert page[f"strata_worker_step{{{me}}}"] == 7
    assert page[f'strata_worker_gpu_utilization_ratio{{{me},gpu="0"}}'] == 0.75
    assert page["strata_cluster_gpus"] == 1
    memory = psutil.Process().memory_info().rss
    assert page["strata_process_resident_memory_bytes"] == pytest.approx(memory, rel=0.5)


def test_task_series_have_the_mean_loss_of_live_workers_and_are_bounded(tmp_path, monkeypatch):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await running.form(3)
            before = samples(running.metrics.prometheus())
            await running.do(DeclareLost(**running.me(2), signal="hang", reason="no steps"))
            after = samples(running.metrics.prometheus())
            monkeypatch.setattr(task_series, "MAX_TASK_SERIES", 0)
            return before, after, samples(running.metrics.prometheus())

    before, after, bounded = asyncio.run(scenario())
    task = '{task="demo-1"}'
    assert (before[f"strata_task_loss{task}"], before[f"strata_task_workers{task}"]) == (1.5, 3)
    assert (after[f"strata_task_loss{task}"], after[f"strata_task_workers{task}"]) == (1.0, 2)
    assert before[f"strata_task_committed_steps{task}"] == 0
    assert before["strata_task_series_omitted"] == 0
    assert bounded["strata_task_series_omitted"] == 1
    assert not any(name.endswith(task) for name in bounded)


def test_barrier_release_time_includes_the_disk(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await running.form()
            await running.meet(0.01)
            return running.metrics.release_s

    release_s = asyncio.run(scenario())
    assert release_s.count == 1
    assert release_s.sum > 0


def test_host_series_have_what_was_measured(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await running.measure(MEASURED, agent="full")
            partitioned = GpuHealth(index=0, ecc_uncorrected=0)
            await running.measure(HostHealth(gpus=[partitioned]), agent="bare")
            return samples(running.metrics.prometheus())

    page = asyncio.run(scenario())
    assert (
        page['strata_host_cpu_pressure_ratio{host="full"}'] == MEASURED.cpu_pressure_percent / 100
    )
    assert page['strata_host_disk_latency_seconds{host="full"}'] == MEASURED.disk_latency_ms / 1000
    gpu, card = MEASURED.gpus[0], '{host="full",gpu="3"}'
    assert page[f"strata_host_gpu_sm_clock_hertz{card}"] == gpu.sm_clock_mhz * 1_000_000
    assert page[f"strata_host_gpu_lost{card}"] == 0
    assert page['strata_host_gpu_throttled{host="full",gpu="3",reason="hw_thermal"}'] == 1
    bare = {name for name in page if 'host="bare"' in name}
    zero = 'strata_host_gpu_ecc_uncorrected_total{host="bare",gpu="0"}'
    assert bare == {zero, 'strata_host_gpu_lost{host="bare",gpu="0"}'}, "the rest was not measured"
    assert page[zero] == 0


def test_host_series_are_bounded(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            gpus = [GpuHealth(index=number, power_watts=1.0) for number in range(8)]
            for number in range(4):
                await running.measure(HostHealth(load_1m=1.0, gpus=gpus), agent=f"h{number}")
            running.metrics.max_worker_series = 20
            return samples(running.metrics.prometheus())

    page = asyncio.run(scenario())
    assert sum(name.startswith("strata_host_gpu_power_watts") for name in page) == 16
    assert page["strata_host_series_omitted"] == 2


def test_worker_series_are_bounded_and_sums_cover_all(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await running.form(5, ResourceMetrics(cpu_percent=100.0, memory_used_bytes=10))
            running.metrics.max_worker_series = 3
            return samples(running.metrics.prometheus())

    page = asyncio.run(scenario())
    assert sum(name.startswith("strata_worker_cpu_ratio") for name in page) == 3
    assert page["strata_worker_series_omitted"] == 2
    assert page["strata_cluster_cpu_ratio"] == 5.0
    assert page["strata_cluster_memory_used_bytes"] == 50


def test_metrics_page_of_ten_thousand_workers_stays_small(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await running.form(1)
            (worker,) = running.workers
            gpus = [GpuMetrics(i, "H200", 50.0, 1, 2) for i in range(8)]
            for i in range(10_000):
                known = msgspec.structs.replace(worker, id=f"w{i}")
                running.engine.kernel.state.workers[known.id] = known
                used = ResourceMetrics(cpu_percent=1.0, memory_used_bytes=1, gpu_metrics=gpus)
                seen = LastHeartbeat(incarnation=1, last_heartbeat_ms=0, resources=used)
                running.heartbeats.note(known.id, seen)
            return running.metrics.prometheus()

    page = asyncio.run(scenario())
    assert len(page) < 4_000_000
    assert samples(page)["strata_cluster_gpus"] == 80_000


def test_any_worker_name_can_be_a_label():
    page = Exposition()
    names = ['a"b', "a\\b", "a\nb", "žluť", "", "x" * 200, "\ud800"]
    page.add("gauge", "strata_x", "Text.", [(labels(worker=name), 1) for name in names])
    check_with_promtool(page.text())
    assert len(page.text().splitlines()) == 2 + len(names)


def check_with_promtool(page):
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=page.encode(),
        capture_output=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_promtool_accepts_the_page(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            empty = running.metrics.prometheus()
            await busy(running)
            return empty, running.metrics.prometheus()

    for page in asyncio.run(scenario()):
        check_with_promtool(page)


@contextmanager
def served(page):
    """Serve a page at /metrics on loopback; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def prometheus(folder, target):
    """Run Prometheus with the configuration in deploy/; yields its address."""
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8")
    assert "127.0.0.1:3000" in config
    config = config.replace("127.0.0.1:3000", target).replace("15s", "200ms")
    (folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield address
        finally:
            process.terminate()
            process.wait(timeout=30)


def query_value(address, query):
    """The value of a query, or None."""
    url = f"http://{address}/api/v1/query?query={quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            result = json.load(answer)["data"]["result"]
    except (urllib.error.URLError, ConnectionError):
        return None
    return float(result[0]["value"][1]) if result else None


def until(condition, timeout_s=60):
    """Wait until a condition holds; returns its value."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)
    return found


def test_prometheus_scrapes_the_page(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await busy(running)
            page = running.metrics.prometheus
            with served(page) as target, prometheus(tmp_path, target) as address:
                await asyncio.to_thread(
                    until, lambda: query_value(address, 'up{job="strata"} == 1')
                )
                first = await asyncio.to_thread(query_value, address, "strata_active_workers")
                await running.do(DeclareLost(**running.me(1), signal="hang", reason="no steps"))
                lost = 'strata_worker_losses_total{signal="hang"} == 1'
                await asyncio.to_thread(until, lambda: query_value(address, lost))
                second = await asyncio.to_thread(query_value, address, "strata_active_workers")
                quantile = "histogram_quantile(0.99, strata_barrier_wait_seconds_bucket)"
                waited = await asyncio.to_thread(query_value, address, quantile)
                return first, second, waited

    first, second, waited = asyncio.run(scenario())
    assert (first, second) == (2.0, 1.0)
    assert 0 < waited < 60


def expressions(dashboard):
    """All queries in the panels and variables of a dashboard."""
    found = []
    for panel in dashboard["panels"]:
        found += [target["expr"] for target in panel.get("targets", ())]
    return found + [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]


def test_grafana_dashboard_uses_only_existing_metrics(tmp_path):
    async def scenario():
        async with coordinator(tmp_path) as running:
            await busy(running)
            return running.metrics.prometheus()

    page = asyncio.run(scenario())
    exposed = {re.split(r"[{ ]", row)[0] for row in page.splitlines() if not row.startswith("#")}
    dashboard = json.loads((ROOT / "deploy/grafana/strata.json").read_text("utf-8"))
    named = {
        name for query in expressions(dashboard) for name in re.findall(r"\bstrata_\w+", query)
    }
    assert len(named) > 20
    assert named - exposed == set()


def test_prometheus_accepts_every_query_of_the_grafana_dashboard(tmp_path):
    dashboard = json.loads((ROOT / "deploy/grafana/strata.json").read_text("utf-8"))
    queries = [query for query in expressions(dashboard) if not query.startswith("label_values")]
    filled = [query.replace("$__rate_interval", "5m").replace("$worker", ".*") for query in queries]
    rules = [{"record": f"checked:{i}", "expr": query} for i, query in enumerate(filled)]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [program("promtool"), "check", "rules", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    config = [program("promtool"), "check", "config"]
    checked = subprocess.run(
        [*config, str(ROOT / "deploy/prometheus/prometheus.yml")], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
