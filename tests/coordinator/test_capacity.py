"""Limit of open files: raised at start; a shortage is logged and closes unauthenticated
connections, not workers."""

import asyncio
import re

import psutil
import pytest

from strata.coordinator.connection_capacity import capacity, shortage, wanted_files
from tests.coordinator.conftest import Client
from tests.coordinator.process import Process
from tests.coordinator.test_flood import connect_many, served
from tests.coordinator.test_rpc import open_session
from tests.wire.harness import GREETING, RawClient


def test_no_warning_if_the_file_limit_is_sufficient():
    found = capacity(10_000, wanted_files(10_000))
    assert shortage(found, 10_000) == ""
    assert found.bounds.max_connections == 20_000
    assert found.bounds.max_unauthenticated == 10_000
    assert found.http.connections == 2_048


@pytest.mark.parametrize("files", [256, 1_024, 4_096])
def test_connections_fit_the_file_limit(files):
    found = capacity(10_000, files)
    assert found.bounds.max_connections + found.http.connections < files
    assert f"enough for {found.workers} workers" in shortage(found, 10_000)
    assert found.workers > files // 5


def test_more_workers_need_more_connections():
    files = wanted_files(100_000)
    assert capacity(100_000, files).bounds.max_connections == 200_000
    assert shortage(capacity(100_000, files), 100_000) == ""
    assert shortage(capacity(100_000, files // 2), 100_000)


def limited(folder, soft: int, hard: int, **settings) -> Process:
    """A coordinator started with these limits of open files."""
    started = Process(folder, **settings)
    limits = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    started.prefix = ["sh", "-c", limits, "sh"]
    started.start()
    return started


def test_soft_limit_is_raised_and_used(tmp_path):
    started = limited(tmp_path, 128, 3_000, max_workers=1_000)
    try:
        assert psutil.Process(started.pid).rlimit(psutil.RLIMIT_NOFILE)[0] == 3_000
        assert "files" not in started.output()
        clients = [RawClient(started.port) for _ in range(300)]
        assert all(client.is_served() for client in clients)
        for client in clients:
            client.close()
    finally:
        started.kill()


def test_shortage_is_logged_and_workers_keep_their_connections(tmp_path):
    started = limited(tmp_path, 200, 400, max_workers=5_000)
    try:
        said = re.search(r"may open 400 files, which is enough for (\d+) workers", started.output())
        assert said, started.output()
        client = Client(started)
        victim = open_session(client, "victim")
        victim.next("standing")

        async def crowd() -> None:
            made = await connect_many(started.port, 450, GREETING)
            await asyncio.to_thread(served, client, victim)
            newcomer = Client(started)
            assert newcomer.register("newcomer").assigned_id == "newcomer"
            newcomer.channel.close()
            assert psutil.Process(started.pid).num_fds() < 400
            for writer in made:
                writer.transport.abort()

        asyncio.run(crowd())
        victim.close()
        client.channel.close()
    finally:
        started.kill()
