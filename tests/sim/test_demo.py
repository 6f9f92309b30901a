"""The demo: a simulated cluster behind the real API, with history, samples and resources, that
refuses every change."""

import httpx
import pytest

from strata.config import Settings
from strata.sim.demo_cluster import demonstrating
from strata.sim.sim_worker import DATASET


@pytest.mark.anyio
async def test_demo_shows_a_cluster_and_refuses_changes():
    async with (
        demonstrating(Settings(http_port=0), "1.2.3", workers=4) as url,
        httpx.AsyncClient(base_url=f"{url}/api", trust_env=False, timeout=30) as client,
    ):

        async def get(path, **params):
            answer = await client.get(path, params=params)
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert (await get("/status"))["mode"] == "demo"
        workers = await get("/workers")
        assert len(workers) == 4
        assert all(each["resources"]["gpu_metrics"] for each in workers)
        samples = await get(f"/datasets/{DATASET}/preview")
        assert {each["worker_id"] for each in samples} <= {each["id"] for each in workers}
        assert samples[0]["features"]["image"]["kind"] == "image"
        used = await get("/timeline/usage", node=workers[0]["id"])
        assert any(value is not None for value in used["cpu_percent"])
        refused = await client.post("/tasks", json={"name": "x", "entry": "x.py"})
        assert refused.status_code == 409
