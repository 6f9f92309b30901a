"""The export to TensorBoard, MLflow and Weights & Biases: each tool's own reader finds exactly the
values that the script wrote to a file itself, without those of steps that were undone."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import PIL.Image
import pytest

from strata import extras
from strata.cli.support.tracker_exports import destination_of
from strata.timeline.archive.run_archive import open_anywhere
from strata.timeline.forward import forwarding
from strata.timeline.forward.forwarding import Forwarder, LogSource
from strata.timeline.forward.mlflow_runs import MlflowRuns
from tests.cli.conftest import environment, free_port, started_verb, strata, until
from tests.cli.curved import STEPS, TASK
from tests.cli.logged import EVERY
from tests.cli.logged import STEPS as LOGGED_STEPS
from tests.cli.runs import script

pytest.importorskip("tensorboard")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # of the readers of other tools
]

LIVE_STEPS, LOST_AT = 30, 15
LIVE = f"""
import json, os, signal, time
from pathlib import Path
import numpy as np
import strata

samples = strata.open_arrays({{"x": np.arange({LIVE_STEPS * 8}, dtype=np.int64)}}, name="numbers")
with strata.join(checkpoint_every=8) as run:
    state = run.restore({{"w": np.zeros(10, np.float32)}})
    again = Path("killed").exists()
    out = open(f"values-{{int(again)}}.jsonl", "a")
    for batch in run.batches(samples, global_batch=8, epochs=1):
        if run.steps == {LOST_AT} and not again:
            while not Path("kill").exists():
                time.sleep(0.01)
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with run.step() as step:
            state["w"] += 1
            loss = 1 / (step.number + 1) + 10 * again
            step.log(loss=loss)
        if step.applied:
            out.write(json.dumps([step.number, loss]) + "\\n")
            out.flush()
        if run.steps == 8:
            run.log(val=8.5 + again)
"""

KILLED = """
import os, signal, sys
from strata.cli import main
from strata.timeline.forward import forwarding, mlflow_runs
name, at, when, *sys.argv[1:] = sys.argv[1:]
forwarding.BATCH = 5
if name == "mlflow":
    made = mlflow_runs.MlflowRuns
else:
    from strata.timeline.forward import wandb_runs
    made = wandb_runs.WandbRuns
send, sent = made.send, []
def killed(self, items, page):
    sent.append(1)
    if len(sent) == int(at) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    send(self, items, page)
    if len(sent) == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
made.send = killed
main()
"""


def written(folder, pattern):
    """The losses that rank 0 wrote to files, of the last attempt at each step."""
    found = {}
    for path in sorted(folder.glob(pattern)):
        found |= dict(map(json.loads, path.read_text().splitlines()))
    return found


@pytest.fixture(scope="module")
def expected(curved):
    """The values of the run that rank 0 logged: for each metric, step and value."""
    losses = written(curved, "logged-0-*.jsonl")
    assert len(losses) == STEPS
    return {
        "loss": sorted(losses.items()),
        "lr": [(step, 0.5 * 0.9**step) for step in range(STEPS)],
        "val": [(12, 12.0), (24, 24.0)],
    }


def same(found, wanted):
    """Whether two lists of steps and values are equal; NaN equals NaN."""
    return [each[0] for each in found] == [each[0] for each in wanted] and all(
        a == b or (math.isnan(a) and math.isnan(b))
        for (_, a), (_, b) in zip(found, wanted, strict=True)
    )


def rounded(points):
    """Points as float32, the precision of event files."""
    return [(step, float(np.float32(value))) for step, value in points]


def accumulator(folder):
    from tensorboard.backend.event_processing import event_accumulator as reading

    sizes = dict.fromkeys(reading.DEFAULT_SIZE_GUIDANCE, 0)
    found = reading.EventAccumulator(str(folder), size_guidance=sizes)
    found.Reload()
    return found


def scalars(reader, tag):
    return [(each.step, each.value) for each in reader.Scalars(tag)]


SERVED = """
import json, sys
from tensorboard.context import RequestContext
from tensorboard.data import provider, server_ingester
from tensorboard.util import grpc_util

ingester = server_ingester.SubprocessServerDataIngester(
    server_binary=server_ingester.get_server_binary(),
    logdir=sys.argv[1],
    reload_interval=0,
    channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
)
ingester.start()
read = ingester.data_provider.read_scalars(
    RequestContext(),
    experiment_id="",
    plugin_name="scalars",
    downsample=10_000,
    run_tag_filter=provider.RunTagFilter(tags=sys.argv[2:]),
)
[run] = read.values()
print(json.dumps({tag: [(e.step, e.value) for e in points] for tag, points in run.items()}))
"""


def served_scalars(folder, tags):
    """What TensorBoard's data server, which its page uses, reads; it ends with its client."""
    command = [sys.executable, "-c", SERVED, str(folder), *tags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_tensorboard_reads_the_values_that_the_script_wrote(curved, expected, tmp_path):
    done = strata(
        *("export", "--format", "tensorboard", "--data", str(curved / "data")),
        *("--out", str(tmp_path / "tb")),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    reader = accumulator(tmp_path / "tb" / TASK)
    assert set(reader.Tags()["scalars"]) == set(expected)
    for tag, points in expected.items():
        assert same(scalars(reader, tag), rounded(points)), tag
    served = served_scalars(tmp_path / "tb", list(expected))
    assert all(same(served[tag], rounded(points)) for tag, points in expected.items())
    [start] = reader.Tensors("_hparams_/session_start_info")
    assert start.step == 0
    assert "optimizer.lr | 0.5" in text_of(reader.Tensors("config")[0])


def text_of(event):
    return event.tensor_proto.string_val[0].decode()


def test_tensorboard_reads_images_texts_and_histograms(logged, tmp_path):
    from tensorboard.util import tensor_util

    done = strata(
        *("export", "--format", "tensorboard", "--data", str(logged)),
        *("--out", str(tmp_path)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    [folder] = [each for each in tmp_path.iterdir() if each.is_dir()]
    reader = accumulator(folder)
    images = reader.Images("sample")
    assert [each.step for each in images] == list(range(0, LOGGED_STEPS, EVERY))
    for each in images:
        pixels = np.asarray(PIL.Image.open(io.BytesIO(each.encoded_image_string)))
        assert pixels.shape == (4, 6, 3)
        assert (pixels == 10 * each.step).all()
    for each in reader.Tensors("weights"):
        rows = tensor_util.make_ndarray(each.tensor_proto)
        assert (rows[0, 0], rows[-1, 1]) == (each.step + 1, each.step + 100)
        assert rows[:, 2].tolist() == [10] * 10
    texts = [(each.step, text_of(each)) for each in reader.Tensors("note")]
    assert texts == [(12, "after 12 steps"), (24, "after 24 steps")]


def everything(folder):
    """All that TensorBoard reads from an export, but when the session ended."""
    reader = accumulator(folder)
    tags = reader.Tags()
    tensors = [
        (tag, each.step, each.wall_time, each.tensor_proto.SerializeToString())
        for tag in tags["tensors"]
        for each in reader.Tensors(tag)
        if "end_info" not in tag
    ]
    return [reader.Scalars(tag) for tag in tags["scalars"]], reader.Images("sample"), tensors


def test_export_over_rest_is_that_of_the_log(logged, tmp_path):
    http = str(free_port())
    arguments = ("up", "--data-dir", str(logged), "--http-port", http, "--grpc-port", "0")
    export = ("export", "--format", "tensorboard", "--out")
    with started_verb(*arguments, cwd=tmp_path) as up:
        up.wait_for(lambda up: any("data " in line for line in up.err), "sign of a start")
        url = ("--url", f"http://127.0.0.1:{http}", "--follow")
        done = strata(*export, str(tmp_path / "rest"), *url, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = strata(*export, str(tmp_path / "log"), "--data", str(logged), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [over_rest] = (tmp_path / "rest").iterdir()
    found = everything(over_rest)
    assert found == everything(tmp_path / "log" / over_rest.name)
    assert len(found[1]) == LOGGED_STEPS // EVERY


@contextmanager
def exported(tool, out, folder, **variables):
    arguments = ("export", "--format", tool, "--out", str(out), "--data", "data", "--follow")
    with started_verb(*arguments, cwd=folder, **variables) as verb:
        yield verb


def wandb_rows(folder):
    """The rows of each run in W&B's files, read by its own reader."""
    from wandb.proto import wandb_internal_pb2 as pb
    from wandb.sdk.internal.datastore import DataStore

    found = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        rows = found.setdefault(path.stem, [])
        while True:
            try:
                data = store.scan_data()
            except AssertionError:  # the writer was killed
                break
            if data is None:
                break
            record = pb.Record.FromString(data)
            if record.HasField("history"):
                items = record.history.item
                rows.append({e.key or e.nested_key[0]: json.loads(e.value_json) for e in items})
    return found


def series(rows, name):
    return [(row["step"], row[name]) for row in rows if name in row]


def test_live_exports_replace_what_a_recovery_undid(tmp_path):
    pytest.importorskip("wandb")
    name = script(tmp_path, LIVE)
    arguments = ("run", name, "--data-dir", "data")
    with started_verb(*arguments, cwd=tmp_path) as training:
        until(lambda: written(tmp_path, "values-0.jsonl"), 60)
        board, wandb = tmp_path / "tb", tmp_path / "wb"
        with (
            exported("tensorboard", board, tmp_path) as first,
            exported("wandb", wandb, tmp_path, WANDB_MODE="offline") as second,
        ):
            until(lambda: [*board.glob("*/events*")], 60)
            [task] = board.iterdir()
            reader = accumulator(task)
            until(lambda: reader.Reload() and len(losses_of(reader)) == LOST_AT, 60)
            until(lambda: noted(tmp_path) == LOST_AT, 60)
            (tmp_path / "kill").touch()
            assert training.process.wait(60) == 0, training.err
            assert (first.ended(), second.ended()) == (0, 0), (first.err, second.err)
            reader.Reload()
    losses = written(tmp_path, "values-*.jsonl")
    assert set(losses) == set(range(LIVE_STEPS))
    undone = len(written(tmp_path, "values-0.jsonl")) - min(
        step for step, loss in losses.items() if loss > 10
    )
    assert undone > 0
    for each in (reader, accumulator(task)):
        assert same(losses_of(each), rounded(sorted(losses.items())))
        assert scalars(each, "val") == [(8, 8.5)] or scalars(each, "val") == [(8, 9.5)]
    assert same(served_scalars(board, ["loss"])["loss"], rounded(sorted(losses.items())))
    earlier, last = sorted(wandb_rows(wandb).items())
    assert earlier[0].endswith("-0-0")
    assert last[0].endswith("-0-1")
    assert same(series(last[1], "loss"), sorted(losses.items()))


def noted(folder):
    """How many steps W&B was sent: its files are written in blocks, so they are behind."""
    states = [json.loads(path.read_text()) for path in folder.glob("strata-wandb-*.json")]
    return max((state["done"] for state in states), default=0)


def losses_of(reader):
    return scalars(reader, "loss") if "loss" in reader.Tags()["scalars"] else []


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """The URL of a real MLflow server with an SQLite backend."""
    pytest.importorskip("mlflow")
    pytest.importorskip("flask")
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log").open("wb") as said:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**quiet),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/health"), 120)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def asked(url, path, body=None, /, **params):
    """MLflow's answer to a request."""
    query = "&".join(f"{name}={value}" for name, value in params.items())
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{url}/api/2.0/mlflow/{path}?{query}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def runs_of(url, experiment):
    found = asked(url, "experiments/get-by-name", experiment_name=experiment)["experiment"]
    return asked(url, "runs/search", {"experiment_ids": [found["experiment_id"]]})["runs"]


def stored(url, run, key):
    """The history of a metric in MLflow, by step."""
    answer = asked(
        url, "metrics/get-history", run_id=run["info"]["run_id"], metric_key=key, max_results=1000
    )
    return sorted((int(each["step"]), float(each["value"])) for each in answer["metrics"])


def killed_sender(tool, out, folder, data, at, when, project):
    """Export in a process that kills itself at a batch of five items; 0 lets it live."""
    arguments = ("export", "--format", tool, "--out", str(out), "--data", str(data))
    return subprocess.run(
        [sys.executable, "-c", KILLED, tool, str(at), when, *arguments, "--project", project],
        cwd=folder,
        env=environment(WANDB_MODE="offline"),
        capture_output=True,
        text=True,
        timeout=100,
    )


KILLS = ((2, "before"), (2, "after"), (1, "after"), (1, "before"))


def test_mlflow_has_each_value_once_although_senders_were_killed(
    mlflow, curved, expected, tmp_path
):
    for at, when in KILLS:
        killed = killed_sender("mlflow", mlflow, tmp_path, curved / "data", at, when, "killed")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = killed_sender("mlflow", mlflow, tmp_path, curved / "data", 0, "", "killed")
    assert done.returncode == 0, done.stderr
    [run] = runs_of(mlflow, "killed")
    for key, points in expected.items():
        assert same(stored(mlflow, run, key), points), key
    params = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert params["optimizer.lr"] == "0.5"
    tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
    assert (tags["strata.task"], run["info"]["status"]) == (TASK, "FINISHED")
    again = killed_sender("mlflow", mlflow, tmp_path, curved / "data", 0, "", "killed")
    assert "sent 0 values" in again.stdout


def test_wandb_has_each_value_once_although_senders_were_killed(curved, expected, tmp_path):
    pytest.importorskip("wandb")
    out = tmp_path / "wb"
    for at, when in KILLS:
        killed = killed_sender("wandb", out, tmp_path, curved / "data", at, when, "killed")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = killed_sender("wandb", out, tmp_path, curved / "data", 0, "", "killed")
    assert done.returncode == 0, done.stderr
    [rows] = wandb_rows(out).values()
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    for name, points in expected.items():
        assert same(series(rows, name), points), name


@contextmanager
def losing_answers(url, lost):
    """A proxy that forwards requests and breaks the connection after the first `lost` batches."""
    left = [lost]

    class Proxy(BaseHTTPRequestHandler):
        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            kind = {"Content-Type": self.headers["Content-Type"]}
            request = urllib.request.Request(url + self.path, body, kind, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    status, content = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
            if "metrics" in str(body) and "log-batch" in self.path and left[0]:
                left[0] -= 1
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = forward

        def log_message(self, *said):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", left
        finally:
            server.shutdown()
            thread.join()


def test_mlflow_that_loses_answers_gets_each_value_once(
    mlflow, curved, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(forwarding, "BATCH", 5)
    said, waits = [], []
    with (
        losing_answers(mlflow, 3) as (url, left),
        open_anywhere(str(curved / "data")) as timeline,
    ):
        source = LogSource(timeline, "", 0)
        runs = MlflowRuns(url, "lost", source, said.append, wait=waits.append)
        Forwarder(source, runs, tmp_path / "state.json").run(follow=False)
    assert left == [0]
    assert waits == [1.0] * 3
    assert "does not answer" in said[0]
    [run] = runs_of(mlflow, "lost")
    assert all(same(stored(mlflow, run, key), points) for key, points in expected.items())


def test_mlflow_has_images_where_its_page_looks_for_them(mlflow, logged, tmp_path):
    done = strata(
        *("export", "--format", "mlflow", "--out", mlflow, "--project", "media"),
        *("--data", str(logged)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    [run] = runs_of(mlflow, "media")
    listed = asked(mlflow, "artifacts/list", run_id=run["info"]["run_id"], path="images")["files"]
    steps = sorted(int(each["path"].split("+step+")[1].split("+")[0]) for each in listed)
    assert steps == list(range(0, LOGGED_STEPS, EVERY))


def test_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "strata.timeline.forward.wandb_runs", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        destination_of("wandb", "out", "strata", None)
    assert extras.explained(missing.value).hint == "pip install 'strata-runtime[wandb]'"


@pytest.mark.parametrize(
    ("format", "given", "code", "said"),
    [
        ("tensorboard", ("--rank", "7"), 4, "'script-1' has no rank 7"),
        ("tensorboard", ("--from", "end-5m", "--project", "x"), 2, "--from, --project cannot"),
        ("perfetto", ("--follow",), 2, "--follow cannot be used with --format perfetto"),
    ],
)
def test_options_and_ranks_that_do_not_apply_are_errors(
    format, given, code, said, curved, tmp_path
):
    out = tmp_path / "out"
    arguments = ("export", "--format", format, "--out", str(out), *given)
    done = strata(*arguments, "--data", str(curved / "data"), cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not out.exists()


def test_wandb_without_a_login_is_one_error(curved, tmp_path):
    pytest.importorskip("wandb")
    arguments = ("export", "--format", "wandb", "--out", "out", "--data", str(curved / "data"))
    empty = {"WANDB_API_KEY": "", "WANDB_MODE": "online", "HOME": str(tmp_path)}
    done = strata(*arguments, cwd=tmp_path, **empty)
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("strata: W&B has no API key\nhint: run `wandb login`")
