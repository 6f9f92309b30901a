"""What a script logged beside numbers is read over REST, also from a run that has ended."""

import io

import httpx
import numpy as np
import PIL.Image
import pytest

from tests.cli.conftest import free_port, started_verb
from tests.cli.logged import EVERY, STEPS


@pytest.fixture(scope="module")
def get(logged, tmp_path_factory):
    """Asks a coordinator that has the data of the run."""
    http = str(free_port())
    arguments = ("up", "--data-dir", str(logged), "--http-port", http, "--grpc-port", "0")
    with started_verb(*arguments, cwd=tmp_path_factory.mktemp("up")) as up:
        up.wait_for(lambda up: any("data " in line for line in up.err), "sign of a start")
        with httpx.Client(base_url=f"http://127.0.0.1:{http}/api/timeline/", timeout=20) as client:
            yield lambda path, **params: client.get(path, params=params)


def test_media_of_the_surviving_history_are_complete(get):
    items = get("media", kind="image", name="sample").json()
    assert {item["worker"] for item in items} != set()
    assert [item["step"] for item in items if not item["undone"]] == list(range(0, STEPS, EVERY))
    undone = [item["step"] for item in items if item["undone"]]
    assert undone
    assert max(undone) < 15
    assert items == sorted(items, key=lambda item: item["time_ms"])


def test_each_item_is_read_as_it_was_logged(get):
    images = [item for item in get("media", kind="image").json() if not item["undone"]]
    answer = get(f"media/{images[-1]['ref']}")
    assert answer.headers["content-type"] == "image/png"
    pixels = np.asarray(PIL.Image.open(io.BytesIO(answer.content)))
    assert pixels.shape == (4, 6, 3)
    assert (pixels == 10 * images[-1]["step"]).all()
    assert images[-1]["caption"] == f"step {images[-1]['step']}"
    histogram = [item for item in get("media", kind="histogram").json() if not item["undone"]][-1]
    found = get(f"media/{histogram['ref']}").json()
    first = histogram["step"] + 1
    assert (found["edges"][0], found["edges"][-1]) == (first, first + 99)
    assert found["counts"] == [10] * 10
    (text,) = [item for item in get("media", kind="text").json() if item["step"] == STEPS]
    answer = get(f"media/{text['ref']}")
    assert (answer.headers["content-type"], answer.text) == (
        "text/plain; charset=utf-8",
        f"after {STEPS} steps",
    )


def test_media_are_filtered_and_paged(get):
    every = get("media").json()
    found, cursor = [], ""
    while True:
        answer = get("media", limit=3, cursor=cursor)
        assert len(answer.json()) <= 3
        found += answer.json()
        if not (cursor := answer.headers.get("X-Next-Cursor", "")):
            break
    assert found == every
    within = get("media", from_step=4, to_step=8).json()
    assert within == [item for item in every if 4 <= item["step"] <= 8] != []
    assert get("media", task="another").json() == []


def test_reference_that_is_no_media_is_not_found(get):
    other = get("events", kind="WorkerRegistered").json()[0]["ref"]
    answer = get(f"media/{other}")
    assert answer.status_code == 404
    assert "is not an image" in answer.json()["error"]["message"]
