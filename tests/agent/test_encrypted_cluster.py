"""A cluster with client certificates: `strata up`, an agent and its workers, in their processes."""

import os
import signal
import ssl
from pathlib import Path

import httpx
import pytest

from tests.agent.harness import Agent, Api, until, worker_pids
from tests.cli.conftest import strata
from tests.coordinator.process import process
from tests.coordinator.test_tls import Files, shown_certificate

SCRIPT = """
import os, time
import numpy as np
import strata

with strata.join() as run:
    state = run.restore({"weights": np.zeros(50_000)})
    while not os.path.exists("finish"):
        try:
            with run.step() as step:
                state["weights"] += run.average(np.full(50_000, run.rank + 1.0))
                step.log(loss=1.0)
        except strata.GenerationChanged:
            continue
        time.sleep(0.02)
    print("expected", bool(np.all(state["weights"] == 1.5 * run.steps)))
"""


class EncryptedApi(Api):
    """The REST API over TLS, with a client certificate."""

    def __init__(self, coordinator, files, pair) -> None:
        super().__init__(coordinator)
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(*pair)
        self._client = httpx.Client(verify=context, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def get(self, path, **params):
        answer = self._client.get(f"{self.coordinator.http_url}/api{path}", params=params)
        return answer.raise_for_status().json()

    def post(self, path, **body):
        answer = self._client.post(f"{self.coordinator.http_url}/api{path}", json=body)
        return answer.raise_for_status().json()


@pytest.mark.timeout(240)
def test_training_goes_on_over_tls_after_a_loss_and_a_renewed_certificate(tmp_path):
    files, work = Files(tmp_path), tmp_path / "work"
    work.mkdir()
    script = work / "train.py"
    script.write_text(SCRIPT, "utf-8")
    pair = files.issue("client")
    variables = {
        "STRATA_TLS_CA": "ca.pem",  # relative to the agent's folder, not to the script's
        "STRATA_TLS_CLIENT_CERT": "client.pem",
        "STRATA_TLS_CLIENT_KEY": "client.key",
    }
    given = files.server(tls_client_ca=files.ca, heartbeat_interval_s=0.5, connection_grace_s=0.5)
    with process(tmp_path, **given) as started:
        assert started.http_url.startswith("https://")
        api = EncryptedApi(started, files, pair)
        agent = Agent(tmp_path, started.address, 2, **variables)
        try:
            task = api.submit(script, 2)
            committed = lambda: api.task(task)["committed_steps"]  # noqa: E731
            until(lambda: committed() > 3, "the first steps", 60)
            os.kill(worker_pids(work)[f"{task}-w1"], signal.SIGKILL)
            until(lambda: api.facts("WorkerLost"), "the loss", 60)
            until(lambda: len(api.facts("RecoveryChosen")) == 2, "the recovery", 60)
            files.server()
            ports = (started.port, int(started.http_url.rpartition(":")[2]))
            newest = Path(given["tls_cert"]).read_text("utf-8").strip()
            for port in ports:
                until(lambda port=port: shown_certificate(port, files.ca) == newest, "renewal")
            before = committed()
            until(lambda: committed() > before + 3, "further steps", 60)
            shown = strata("status", "--url", started.http_url, cwd=tmp_path, **variables)
            (work / "finish").touch()
            api.reaches(task, "completed")
        finally:
            agent.close()
        chosen = [fact["source"] for fact in api.facts("RecoveryChosen")]
        assert sorted(chosen) == ["fresh", "peer"]
        assert api.lines(task_id=task).count("expected True") == 2
        assert len(api.facts("WorkerLost")) == 1
        assert shown.returncode == 0, shown.stderr
        api.close()
