"""Images, texts and histograms beside numbers: checked where they are made, bounded, recorded with
the run, and never the reason why training waits or fails."""

import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import strata
from strata.core.limits import LimitHit
from strata.core.workers.worker_facts import MediaLogged, MediaSkipped
from strata.errors import InvalidArgument, LimitExceeded
from strata.sdk.record.logged_media import IMAGE_BYTES, TEXT_BYTES
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub

RANDOM = np.random.default_rng(1)


def leave_by_error(step):
    with step:
        step.log(note=strata.Text("lost"))
        raise ValueError("broken")


def decoded(image):
    return np.asarray(PIL.Image.open(io.BytesIO(image.data)))


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4), (1, 1), (33, 2, 3)])
def test_png_of_an_array_has_its_pixels(shape):
    pixels = RANDOM.integers(0, 256, shape, np.uint8)
    image = strata.Image(pixels)
    assert (decoded(image) == pixels).all()
    assert (image.height, image.width) == shape[:2]


def test_png_of_an_array_with_one_channel_is_grey():
    pixels = RANDOM.integers(0, 256, (4, 6, 1), np.uint8)
    assert (decoded(strata.Image(pixels)) == pixels[:, :, 0]).all()


def test_floats_from_0_to_1_become_bytes():
    found = decoded(strata.Image(np.array([[0.0, 0.5, 1.0]], np.float32)))
    assert found.tolist() == [[0, 128, 255]]


def test_image_is_a_copy_of_an_array_in_any_layout():
    pixels = RANDOM.integers(0, 256, (6, 8, 3), np.uint8)
    expected = pixels[::2, ::-1].copy()
    image = strata.Image(pixels[::2, ::-1])
    pixels[:] = 0
    assert (decoded(image) == expected).all()


def test_image_of_a_tensor_a_file_bytes_and_a_pil_image(tmp_path):
    torch = pytest.importorskip("torch")
    pixels = RANDOM.integers(0, 256, (4, 5, 3), np.uint8)
    made = PIL.Image.fromarray(pixels)
    made.save(tmp_path / "a.png")
    made.save(tmp_path / "a.jpg")
    data = (tmp_path / "a.png").read_bytes()
    sources = [torch.from_numpy(pixels), made, data, tmp_path / "a.png", str(tmp_path / "a.png")]
    for image in map(strata.Image, sources):
        assert (decoded(image) == pixels).all()
    photo = strata.Image(tmp_path / "a.jpg")
    assert (photo.format, photo.width, photo.height) == ("jpeg", 5, 4)
    assert photo.data == (tmp_path / "a.jpg").read_bytes()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 4, 5), np.uint8), "not an image"),
        (np.zeros(4, np.uint8), "not an image"),
        (np.zeros((0, 4), np.uint8), "not an image"),
        (np.zeros((3, 4), np.int64), "int64"),
        (np.full((3, 4), 1.5), "from 1.5 to 1.5"),
        (np.full((3, 4), np.nan), "nan"),
        (b"no image", "not a whole image file"),
        (Path("missing.png"), "cannot be read"),
        ("missing.png", "cannot be read"),
    ],
)
def test_what_is_not_an_image_is_an_error_that_says_why(source, message):
    with pytest.raises(InvalidArgument, match=message) as refused:
        strata.Image(source)
    assert refused.value.hint


def test_truncated_image_file_is_an_error():
    whole = strata.Image(RANDOM.integers(0, 256, (40, 40, 3), np.uint8)).data
    with pytest.raises(InvalidArgument, match="not a whole image file"):
        strata.Image(whole[: len(whole) // 2])


def test_large_images_texts_and_histograms_are_errors_that_say_what_to_do():
    with pytest.raises(LimitExceeded, match="512 × 512 pixels") as refused:
        strata.Image(RANDOM.integers(0, 256, (512, 512, 3), np.uint8))
    assert "smaller" in refused.value.hint
    assert len(strata.Image(np.zeros((512, 512, 3), np.uint8)).data) < IMAGE_BYTES
    with pytest.raises(LimitExceeded, match="16,385 bytes"):
        strata.Text("a" * (TEXT_BYTES + 1))
    assert strata.Text("a" * TEXT_BYTES).text
    with pytest.raises(InvalidArgument, match="513 bins"):
        strata.Histogram([1.0], bins=513)


def test_histogram_counts_each_value_once_and_those_that_are_not_finite_apart():
    values = np.array([0.0, 1.0, 1.0, 4.0, np.nan, np.inf])
    histogram = strata.Histogram(values, bins=4)
    assert histogram.counts == [1, 2, 0, 1]
    assert histogram.edges == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert histogram.not_finite == 2
    broken = strata.Histogram([np.nan, np.nan])
    assert (broken.edges, broken.counts, broken.not_finite) == ([], [], 2)


def test_known_counts_are_a_histogram_if_they_fit_their_edges():
    known = strata.Histogram.of([3, 4], [0.0, 0.5, 2.0])
    assert (known.counts, known.edges) == ([3, 4], [0.0, 0.5, 2.0])
    for counts, edges in (([1, 2], [0, 1]), ([1], [1, 1]), ([-1], [0, 1]), ([0.5], [0, 1])):
        with pytest.raises(InvalidArgument):
            strata.Histogram.of(counts, edges)


def test_a_number_is_still_required_where_only_numbers_are_recorded(hub, spool):
    with strata.join(hub.address, spool_dir=str(spool)) as run:
        with pytest.raises(InvalidArgument, match="'note' is not a number"):
            run.mark_step(note=strata.Text("a"))
        with pytest.raises(InvalidArgument, match="'note' is not a number"):
            run.log(note="a")


def test_media_of_a_step_are_recorded_with_the_step_and_those_of_undone_steps_are_not(hub, spool):
    with strata.join(hub.address, spool_dir=str(spool)) as run:
        for _ in range(2):
            with run.step() as step:
                step.log(loss=1.0, sample=strata.Image(np.zeros((2, 2), np.uint8), caption="c"))
        broken = run.step()
        with pytest.raises(ValueError, match="broken"):
            leave_by_error(broken)
        run.log({"val/acc": 0.5, "val/note": strata.Text("good")})
        worker, generation = run.worker_id, run.generation
    logged = hub.recorded_facts(worker, "MediaLogged")
    assert [(each.name, each.step, each.in_step) for each in logged] == [
        ("sample", 0, True),
        ("sample", 1, True),
        ("val/note", 2, False),
    ]
    assert {each.generation for each in logged} == {generation}
    assert (logged[0].caption, logged[2].text) == ("c", "good")
    (metrics,) = hub.recorded_facts(worker, "MetricsLogged")
    assert metrics.metrics == {"val/acc": 0.5}


def test_media_beyond_the_limit_of_the_task_are_left_out_and_recorded_as_such(tmp_path, spool):
    with coordinator(tmp_path / "data", max_media_bytes=5_000) as running:
        hub = Hub(running)
        with strata.join(hub.address, spool_dir=str(spool)) as run:
            for number in range(20):
                run.log(note=strata.Text(f"{number:04}" * 100), loss=1.0)
            worker = run.worker_id
        logged = hub.recorded_facts(worker, "MediaLogged")
        skipped = hub.recorded_facts(worker, "MediaSkipped")
        assert sum(each.size_bytes for each in logged) <= 5_000
        assert len(logged) == 5_000 // logged[0].size_bytes
        assert len(logged) + len(skipped) == 20
        assert all(isinstance(each, MediaSkipped) for each in skipped)
        assert "max_media_bytes" in skipped[0].reason
        assert [hit.limit for hit in hub.facts(LimitHit.__name__)] == ["max_media_bytes"]
        assert len(hub.recorded_facts(worker, "MetricsLogged")) == 20
        warned = [text for level, text in hub.lines(worker) if "is left out" in text]
        assert len(warned) == 1


def test_many_media_stay_whole_while_room_is_granted_in_pieces(hub, spool):
    image = RANDOM.integers(0, 256, (200, 400, 3), np.uint8)
    with strata.join(hub.address, spool_dir=str(spool)) as run:
        for number in range(12):
            image[0, 0] = number
            run.log(sample=strata.Image(image))
        worker = run.worker_id
    logged = hub.recorded_facts(worker, "MediaLogged")
    assert [decoded(each)[0, 0].tolist() for each in logged] == [[n] * 3 for n in range(12)]
    assert not hub.recorded_facts(worker, "MediaSkipped")
    granted = sum(fact.size_bytes for fact in hub.facts("MediaRoomGranted"))
    assert granted >= sum(each.size_bytes for each in logged)
    assert isinstance(logged[0], MediaLogged)
