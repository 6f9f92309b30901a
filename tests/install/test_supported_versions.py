"""Guards what Strata may be installed beside: on every Python from 3.11 on, with the oldest allowed
and with the newest dependencies, workers join, train, save, are lost and recover.

A Python that this machine does not have is skipped; 3.11 never is."""

import msgspec
import pytest

from strata.cli import verb_files
from tests.install.environments import call, install, python_of

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
REQUIRED = PYTHONS[0]
BESIDE = ("pytest", "pytest-timeout", "hypothesis", "httpx", "trustme")
SELECTED = [
    f"tests/sdk/{test}"
    for test in (
        "test_join.py::test_workers_get_ranks_and_pass_barriers",
        "test_join.py::test_killed_worker_is_lost_by_its_connection_before_the_heartbeat_timeout",
        "test_join.py::test_output_reaches_the_coordinators_log",
        "test_feeding.py::test_each_sample_is_trained_once_per_epoch",
        "test_feeding.py::test_worker_killed_in_mid_epoch_loses_no_sample",
        "test_saving.py::test_every_rank_saves_its_part_and_a_reader_combines_them",
        "test_recovering.py::test_replacement_gets_the_model_from_a_live_worker",
        "test_recovering.py::test_newest_checkpoint_is_restored_after_all_workers_are_killed",
    )
]

ALONE = """
import json, sys
import numpy as np
import strata

digits = strata.open_arrays({"x": np.arange(64.0)}, name="numbers")
with strata.join(worker_id="w0") as run:
    state = run.restore({"sum": np.zeros(1)})
    for batch in run.batches(digits, batch_size=8, epochs=1):
        with run.step() as step:
            state["sum"] += run.average(batch["x"].sum(keepdims=True))
            step.log(loss=1.0)
        if run.steps == 4:
            run.save(state)
loaded = {name for name in sys.modules if name.split(".")[0] not in sys.stdlib_module_names}
print(json.dumps({"sum": state["sum"].tolist(), "modules": sorted(loaded)}))
"""
STARTS_A_COORDINATOR = ("demo", "sim", "up")
SERVER = {
    "cryptography",
    "duckdb",
    "grpc_health",
    "hpack",
    "litestar",
    "pyarrow",
    "re2",
    "rich",
    "typer",
    "uvicorn",
}
SERVER_FOLDERS = {f"strata.{name}" for name in ("cli", "coordinator", "launch", "sim", "timeline")}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("version", PYTHONS)
def test_sdk_works(version, resolution, distribution, tmp_path):
    python = python_of(version)
    if python is None and version != REQUIRED:
        pytest.skip(f"NOT TESTED: this machine has no Python {version}")
    assert python is not None, f"Python {version} is required"
    made = install(
        tmp_path / "env",
        python,
        distribution.wheel,
        resolution=resolution,
        extras=("server",),
        others=BESIDE,
    )
    # Old libraries warn about newer Pythons; only what Strata does is tested here.
    options = [
        "-q",
        "-x",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 't'}",
    ]
    print(call(made.program("python"), "-m", "pytest", *options, *SELECTED, timeout_s=800))


@pytest.fixture(scope="module")
def core(distribution, tmp_path_factory):
    """An environment with the core install in the oldest allowed versions."""
    folder = tmp_path_factory.mktemp("core") / "env"
    return install(folder, python_of(REQUIRED), distribution.wheel, resolution="lowest-direct")


@pytest.mark.timeout(600)
def test_worker_needs_only_the_core_and_no_server_module(hub, core, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(ALONE, "utf-8")
    address = f"COORDINATOR_ADDR=127.0.0.1:{hub.grpc_port}"
    said = call("env", address, core.program("python"), script, cwd=tmp_path)
    ended = msgspec.json.decode(said.splitlines()[-1])
    assert ended["sum"] == [sum(range(64))]
    assert {name.partition(".")[0] for name in ended["modules"]} & SERVER == set()
    assert set(ended["modules"]) & SERVER_FOLDERS == set()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", [file.stem for file in verb_files()])
def test_command_of_the_core_shows_its_help_or_names_its_extra(core, verb):
    if verb in STARTS_A_COORDINATOR:
        with pytest.raises(AssertionError, match=r"pip install 'strata-runtime\[server\]'"):
            call(core.program("strata"), verb, "--help")
    else:
        assert f"Usage: strata {verb}" in call(core.program("strata"), verb, "--help")


def test_script_without_a_coordinator_names_the_extra_that_starts_one(core):
    with pytest.raises(AssertionError, match="packages of a coordinator are not installed"):
        call(core.program("python"), "-c", "import strata; strata.join()")
