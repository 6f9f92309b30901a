"""Settings: defaults < TOML file < environment < flags.

This is the only module that reads or writes the environment. A setting has one name everywhere: the
field `grpc_port` is `grpc_port` in the file, `STRATA_GRPC_PORT` in the environment and
`--grpc-port` as a flag. Names that other tools also use (`CHECKPOINT_DIR`, `RANK`, ...) are in
`ALIASES`; the `STRATA_` name wins over them. An empty variable counts as not set. An unknown name
is an error that suggests the closest known one, because a misspelt setting that is silently ignored
costs a run.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from strata.alert_options import ALERT_SECRETS, AlertOptions
from strata.core.rule_settings import DEFAULT_RULES, DEFAULT_TIMEOUTS, HEARTBEAT_INTERVAL_S
from strata.errors import SettingError
from strata.setting_types import Count, Days, Index, Port, Seconds
from strata.settings_file import read_settings_file, refuse_unknown

DEFAULT_FILE = Path("strata.toml")
VARIABLES_FILE = Path(".env")
PREFIX = "STRATA_"
SECRETS = ALERT_SECRETS | frozenset(
    {"aws_secret_access_key", "aws_session_token", "secret_config", "store", "token"}
)


class Settings(AlertOptions, frozen=True, kw_only=True):
    """All settings, validated. Build it with `load`. Those of alerts are in `alert_options`."""

    """Addresses of the coordinator; port 0 means any free port.
    `page_origin`: origin of a dashboard served by another server. `page_api_url`: API address that
    the served dashboard uses, a path such as /strata/api or the URL of another coordinator.
    `standby_pages`: URLs of the dashboards of coordinators with the same store, separated by
    commas; a dashboard whose coordinator does not answer changes to one of them."""
    grpc_host: str = "127.0.0.1"
    grpc_port: Port = 50051
    http_host: str = "127.0.0.1"
    http_port: Port = 3000
    token: str = ""
    page_origin: str = ""
    page_api_url: str = ""
    standby_pages: str = ""

    """PEM files. Of the coordinator: certificate, key, authority that signed those of clients. Of
    clients: authority that signed the coordinator's (default: `tls_cert`), certificate, key."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_ca: str = ""
    tls_client_cert: str = ""
    tls_client_key: str = ""

    """Store of the facts: a file in the data folder (default), or a PostgreSQL database that
    several coordinators share, postgresql://USER:PASSWORD@HOST:PORT/DATABASE. One of them leads;
    when it is cut off from the database, another one takes over after at most `lease_s`."""
    store: str = ""
    lease_s: Annotated[float, Meta(ge=1, le=3600)] = 10.0

    """Data folder, and number of facts between two snapshots of the state (shorter restarts)."""
    data_dir: str = "./strata-data"
    snapshot_every_facts: Count = 4_000

    """Whether a worker that names no task continues the newest default task after its end."""
    continue_ended: bool = False

    """Archive finished runs as Parquet; the target (a folder or s3://bucket/prefix; default: `runs`
    under `data_dir`); and the delay after a run's end, so that late events are included."""
    archive_runs: bool = True
    archive_to: str = ""
    archive_after_s: Seconds = 60.0

    """Bytes of worker events of a running task in the log; the older half of more is moved out."""
    running_events_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 256 * 2**20

    """Bytes of facts in the log if `archive_to` is set; the oldest facts above this move there."""
    facts_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 2**30

    """Days for which the log keeps the worker events of an archived run; age in days and total
    bytes above which archived runs are deleted (default: never). Facts are never deleted."""
    keep_events_days: Days = 7.0
    keep_runs_days: Days | None = None
    keep_runs_bytes: Annotated[int, Meta(ge=1, le=2**60)] | None = None

    """Price of the workers' time, for `strata goodput` and the dashboard: 2.49/gpu-hour,
    3/worker-hour or 20/host-hour; with another price of a host: host-a=3/gpu-hour,2.49/gpu-hour."""
    price: str = ""

    """Maximum number of workers, and of queued requests; above it requests are refused."""
    max_workers: Count = DEFAULT_RULES.max_workers
    inbox_limit: Count = 65_536

    """Bytes of images, texts and histograms that a task may log; further ones are left out."""
    max_media_bytes: Annotated[int, Meta(ge=0, le=2**60)] = DEFAULT_RULES.max_media_bytes

    """When a host is excluded: number of different tasks that failed there with scripts that
    failed nowhere else (0: never) and the seconds within which they count; and whether a fault of
    a GPU excludes it."""
    exclude_after_tasks: Index = DEFAULT_RULES.exclude_after_tasks
    exclude_window_s: Seconds = DEFAULT_RULES.exclude_window_s
    exclude_on_gpu_faults: bool = DEFAULT_RULES.exclude_on_gpu_faults

    """Liveness timeouts: heartbeats, reconnecting after a broken connection and after a restart of
    the coordinator, incomplete barriers, and minimum time without a step that counts as a hang."""
    heartbeat_interval_s: Seconds = HEARTBEAT_INTERVAL_S
    heartbeat_timeout_s: Seconds = DEFAULT_TIMEOUTS.heartbeat_timeout_s
    connection_grace_s: Seconds = DEFAULT_TIMEOUTS.connection_grace_s
    reattach_grace_s: Seconds = DEFAULT_TIMEOUTS.reattach_grace_s
    barrier_timeout_s: Seconds = DEFAULT_TIMEOUTS.barrier_timeout_s
    hang_floor_s: Seconds = DEFAULT_TIMEOUTS.hang_floor_s

    """The same until a worker of the task has reported three steps: the first ones may compile."""
    hang_unlearned_s: Seconds = DEFAULT_TIMEOUTS.hang_unlearned_s

    """Seconds that stacks are collected before a hang or a barrier is declared; 0 collects none."""
    hang_report_s: Annotated[float, Meta(ge=0, le=60)] = DEFAULT_TIMEOUTS.hang_report_s

    """Seconds that a task waits for unreachable checkpoint storage before it is stopped."""
    storage_timeout_s: Seconds = DEFAULT_TIMEOUTS.storage_timeout_s

    """Seconds from SIGTERM to SIGKILL when a worker is stopped."""
    stop_grace_s: Seconds = 30.0

    """Whether an agent tests its host before the first worker of each task."""
    self_test: bool = False

    """Fork replacements from a process with the script's imports; the delay before it is made."""
    warm_starts: bool = True
    warm_starts_after_s: Seconds = 5.0

    """Bytes of a folder that travels with a task, and of all such folders on the coordinator."""
    max_workdir_bytes: Annotated[int, Meta(ge=1, le=2**40)] = 100 * 2**20
    workdirs_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 10 * 2**30

    """Storage of checkpoints (default: `checkpoints` under `data_dir`) and number to keep. Each
    committed one is copied to `checkpoint_upload` (s3://bucket/prefix). `checkpoint_recycle`
    overwrites files of expired checkpoints: faster, at the cost of the space of one checkpoint."""
    storage_backend: Literal["local", "s3"] = "local"
    checkpoint_dir: str = ""
    checkpoint_bucket: str = ""
    checkpoint_upload: str = ""
    checkpoint_recycle: bool = True
    keep_count: Count = DEFAULT_RULES.keep_count

    """Schedule of saves: steps or seconds between saves, or, if neither is set, an interval chosen
    from the cost of a save and the rate of losses. `checkpoint_when_busy`: postpone a save that is
    due during another one, or block training. Seconds without progress before a save fails."""
    checkpoint_every: Index = 0
    checkpoint_interval_s: Seconds | None = None
    checkpoint_adaptive: bool = True
    checkpoint_when_busy: Literal["postpone", "wait"] = "postpone"
    checkpoint_timeout_s: Seconds = 300.0

    """Cache of remote and compressed dataset files and of indexes, shared by the workers of a host:
    folder (empty: `$XDG_CACHE_HOME/strata`, else a temporary folder) and maximum size in bytes."""
    data_cache_dir: str = ""
    data_cache_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 32 * 2**30

    """Credentials for S3, by their AWS names. `aws_instance_role`: ask the cloud's metadata service
    for the credentials of the machine's role if no others are set."""
    aws_region: str = ""
    aws_access_key_id: str = ""
    aws_secret_access_key: str = ""
    aws_session_token: str = ""
    aws_endpoint_url: str = ""
    aws_instance_role: bool = False

    """Identity of a training process; set by the agent or launcher that starts it."""
    coordinator_addr: str = ""
    task: str = ""
    start: Index = 0
    worker_id: str = ""
    rank: Index | None = None
    world_size: Count | None = None
    wrapper: str = ""
    owner: str = ""
    secret_config: str = ""
    gpu_count: Index | None = None

    """Capture output in the SDK (off if an agent reads the pipes); least severe level to send."""
    capture_output: bool = True
    capture_level: Literal["debug", "info", "warn", "error"] = "debug"

    """Folder, maximum bytes of unstored events; seconds: peer silent, between records."""
    spool_dir: str = ""
    spool_max_bytes: Count = 64 * 2**20
    peer_timeout_s: Seconds = 30.0
    resource_interval_s: Seconds = 30.0
    progress_interval_s: Seconds = 5.0

    """Log levels by package (`coordinator=debug,info`), format, maximum bytes of stored lines."""
    log_filter: str = "info"
    log_format: Literal["text", "json"] = "text"
    log_max_bytes: Count = 512_000_000

    """Serve simulated data instead of a real cluster."""
    demo_mode: bool = False

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [(name, shown(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}

# Read when the STRATA_ name is not set; of several, the first that is set wins.
ALIASES: dict[str, tuple[str, ...]] = {
    "storage_backend": ("STORAGE_BACKEND",),
    "checkpoint_dir": ("CHECKPOINT_DIR",),
    "checkpoint_bucket": ("CHECKPOINT_BUCKET",),
    "aws_region": ("AWS_REGION",),
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "aws_session_token": ("AWS_SESSION_TOKEN",),
    "aws_endpoint_url": ("AWS_ENDPOINT_URL",),
    "coordinator_addr": ("COORDINATOR_ADDR", "COORDINATOR_URL"),
    "worker_id": ("WORKER_ID",),
    "rank": ("RANK",),
    "world_size": ("WORLD_SIZE",),
    "gpu_count": ("GPU_COUNT",),
    "log_filter": ("STRATA_LOG", "RUST_LOG"),
    "log_format": ("LOG_FORMAT",),
    "demo_mode": ("DEMO_MODE",),
    "page_api_url": ("VITE_API_URL",),
}

# Variables from which the S3 library takes credentials, besides the keys in the settings.
AWS_IDENTITIES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)

# The identity of a process; child processes do not inherit it.
IDENTITY = (
    "coordinator_addr",
    "task",
    "start",
    "worker_id",
    "rank",
    "world_size",
    "wrapper",
    "owner",
)

# World size as set by launchers: torchrun, Slurm, Open MPI, MPICH, MVAPICH, Flux.
SIZES = (
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "PET_NNODES",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_JOB_SIZE",
)
# Set for each of several processes: an indexed Kubernetes job, torchrun.
INDICES = ("JOB_COMPLETION_INDEX", "TORCHELASTIC_RUN_ID")

VARIABLES = {name: (PREFIX + name.upper(), *ALIASES.get(name, ())) for name in FIELDS}


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Settings:
    """Merge and validate the sources. A flag with the value None was not given."""
    values: dict[str, object] = {}
    if file is not None:
        values |= from_file(file)
    values |= from_environ(environ)
    values |= from_flags(flags)
    settings = Settings(**values)  # type: ignore[arg-type]  # each value is converted by `checked`
    if settings.heartbeat_timeout_s <= settings.heartbeat_interval_s:
        raise SettingError(
            f"heartbeat_timeout_s ({settings.heartbeat_timeout_s:g}) must be longer than "
            f"heartbeat_interval_s ({settings.heartbeat_interval_s:g})",
            hint="set a timeout that is longer than the interval between two heartbeats",
        )
    return settings


def load_process(flags: Mapping[str, object], file: Path | None = None) -> Settings:
    """Call `load` with this process's environment, and with `strata.toml` if no file is given.

    Variables missing in the environment are taken from `.env`.
    """
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    return load(flags, {**variables_in(VARIABLES_FILE), **os.environ}, file)


def variables_in(file: Path) -> dict[str, str]:
    """Parse a file of `NAME=value` lines; empty if there is no such file."""
    try:
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{file} cannot be read: {error}", hint="make it a readable UTF-8 file, or delete it"
        ) from error
    found: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if not separator or name.startswith("#"):
            continue
        text = value.strip()
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        found[name.strip()] = text[1:-1] if quoted else text
    return found


def has_desktop() -> bool:
    """Whether this process belongs to a desktop session that can show notifications."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def has_browser() -> bool:
    """Whether a browser can show a page without taking over the terminal."""
    return has_desktop() or sys.platform == "darwin" or bool(os.environ.get("BROWSER"))


def aws_identity() -> str:
    """Name of the variable that gives the S3 library its credentials; empty if there is none."""
    return next((name for name in AWS_IDENTITIES if os.environ.get(name)), "")


def user_cache_folder() -> str:
    """`XDG_CACHE_HOME` if it is an absolute path (its specification ignores others), else ""."""
    return folder if os.path.isabs(folder := os.environ.get("XDG_CACHE_HOME", "")) else ""


def inherited() -> dict[str, str]:
    """This process's environment without its identity, for a child with another identity."""
    own = {variable for name in IDENTITY for variable in VARIABLES[name]}
    return {name: value for name, value in os.environ.items() if name not in own}


def variable_of_several_workers() -> str:
    """`NAME=value` of a variable that says this process is one of several workers; or empty."""
    for name in SIZES:
        size = os.environ.get(name, "").strip()
        if size.isdecimal() and int(size) > 1:
            return f"{name}={size}"
    return next((f"{name}={os.environ[name]}" for name in INDICES if os.environ.get(name)), "")


def active_environment() -> str:
    """The folder of the activated virtual or conda environment; empty if there is none."""
    return os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""


def mlflow_token() -> str:
    """The token for an MLflow server, from the variable that MLflow's own client reads."""
    return os.environ.get("MLFLOW_TRACKING_TOKEN", "")


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment of this process."""
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


@contextmanager
def without_sizes() -> Iterator[None]:
    """Remove world size and rank from the environment while a library reads it.

    Not thread-safe: other threads must not read the environment meanwhile.
    """
    names = (*SIZES, "RANK", "LOCAL_RANK")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def export(variables: Mapping[str, str]) -> None:
    """Set environment variables of this process, for libraries that read them."""
    os.environ.update(variables)


def let_runs_handle_nccl_errors() -> None:
    """Keep PyTorch from ending this process when an NCCL collective fails; the run recovers.

    PyTorch reads the variable when it creates a process group.
    """
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def use_interface(name: str) -> None:
    """Make Gloo and NCCL use a network interface, unless the environment names another one."""
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def from_file(file: Path) -> dict[str, object]:
    parsed = read_settings_file(file)
    for name in parsed.settings:
        refuse_unknown([name], FIELDS, parsed.place(name))
    return {
        name: checked(name, value, f"in {parsed.place(name)}")
        for name, value in parsed.settings.items()
    }


def from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    ours = [variable for variable in environ if variable.startswith(PREFIX)]
    known = [name for names in VARIABLES.values() for name in names if name.startswith(PREFIX)]
    refuse_unknown(ours, known, "the environment")
    values: dict[str, object] = {}
    for name, variables in VARIABLES.items():
        variable = next((each for each in variables if environ.get(each)), None)
        if variable is not None:
            source = f"from the variable {variable}"
            values[name] = checked(name, environ[variable], source, strict=False)
    return values


def from_flags(flags: Mapping[str, object]) -> dict[str, object]:
    refuse_unknown(flags, FIELDS, "the flags")
    return {
        name: checked(name, value, f"from --{name.replace('_', '-')}")
        for name, value in flags.items()
        if value is not None
    }


def checked(name: str, value: object, source: str, *, strict: bool = True) -> object:
    """Convert a value to the field's type; text becomes a number or bool only if not strict."""
    try:
        return msgspec.convert(value, FIELDS[name].type, strict=strict)
    except msgspec.ValidationError as error:
        raise SettingError(f"{name} is {shown(name, value)!r} {source}", hint=str(error)) from error


def shown(name: str, value: object) -> object:
    return "***" if name in SECRETS and value else value
