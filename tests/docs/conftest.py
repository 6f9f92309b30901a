"""The documentation site, built once for all processes that run tests."""

import fcntl
import json

import pytest


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The folder of the built site, with its warnings in `warnings.json`."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    from docs.site.build import build

    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent
    folder, done = base / "site", base / "warnings.json"
    with (base / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(json.dumps(build(folder)), "utf-8")
    return folder
