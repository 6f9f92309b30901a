"""Settings: defaults < TOML file < environment < flags.

This is the only module that reads or writes the environment. A setting has one name everywhere: the
field `grpc_port` is `grpc_port` in the file, `STRATA_GRPC_PORT` in the environment and
`--grpc-port` as a flag. Names that other tools also use (`CHECKPOINT_DIR`, `RANK`, ...) are in
`ALIASES`; the `STRATA_` name wins over them. An empty variable counts as not set. Whatever is
unknown is refused with the closest known name, since a misspelt setting that is silently ignored
costs a run.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from strata.errors import SettingError

DEFAULT_FILE = Path("strata.toml")
VARIABLES_FILE = Path(".env")
PREFIX = "STRATA_"
SECRETS = frozenset({"aws_secret_access_key", "aws_session_token", "token"})

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86400)]
Days = Annotated[float, Meta(ge=0, le=36_500)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Index = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set, checked. Build it with `load`."""

    """Where the coordinator listens. Port 0 takes a free one. Certificate and key are PEM files.
    `page_origin` is the address of a dashboard that another server serves, such as
    http://localhost:8080. `page_api_url` is where the dashboard that this coordinator serves finds
    the API: a path such as /strata/api behind a proxy, or the URL of another coordinator."""
    grpc_host: str = "127.0.0.1"
    grpc_port: Port = 50051
    http_host: str = "127.0.0.1"
    http_port: Port = 3000
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    page_origin: str = ""
    page_api_url: str = ""

    """Where facts are kept, and how often the state is saved so that restarts stay short."""
    data_dir: str = "./strata-data"
    snapshot_every_facts: Count = 4_000

    """Whether finished runs are kept as Parquet, where (a folder or s3://bucket/prefix; nothing:
    `runs` under `data_dir`), and how long after their end, when late events have arrived."""
    archive_runs: bool = True
    archive_to: str = ""
    archive_after_s: Seconds = 60.0

    """How many bytes of events of a running task's workers stay in the log; when there are more,
    the older half moves to `stretches` under `data_dir`, where the timeline reads it as well."""
    running_events_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 256 * 2**20

    """How many bytes of facts stay in the log if `archive_to` is set; when there are more, the
    oldest move there. Queries about them then read them from there."""
    facts_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 2**30

    """How many days after a run's end what its workers recorded stays in the log, too, once it is
    archived; and for how many days, and how much of them, archived runs are kept (nothing: all, for
    ever). Facts are never deleted."""
    keep_events_days: Days = 7.0
    keep_runs_days: Days | None = None
    keep_runs_bytes: Annotated[int, Meta(ge=1, le=2**60)] | None = None

    """How much the coordinator takes on before it says "try again"."""
    max_workers: Count = 10_000
    inbox_limit: Count = 65_536

    """When a silent worker counts as lost, and how long to wait for one."""
    heartbeat_interval_s: Seconds = 5.0
    heartbeat_timeout_s: Seconds = 30.0
    connection_grace_s: Seconds = 1.5
    reattach_grace_s: Seconds = 30.0
    barrier_timeout_s: Seconds = 300.0
    hang_floor_s: Seconds = 60.0

    """How long a task waits for unreachable checkpoint storage before it is stopped."""
    storage_timeout_s: Seconds = 1800.0

    """How long a worker may take to end after SIGTERM before it is killed."""
    stop_grace_s: Seconds = 30.0

    """Whether an agent keeps a process per task that has imported the script's modules, to fork
    replacements from, and how long after a worker's start it prepares that process."""
    warm_starts: bool = True
    warm_starts_after_s: Seconds = 5.0

    """Where checkpoints go, and how many are kept. No folder: `checkpoints` under `data_dir`. To
    where `checkpoint_upload` names (s3://bucket/prefix) each is copied afterwards. Whether files of
    expired ones are written over, which is faster and costs the space of one."""
    storage_backend: Literal["local", "s3"] = "local"
    checkpoint_dir: str = ""
    checkpoint_bucket: str = ""
    checkpoint_upload: str = ""
    checkpoint_recycle: bool = True
    keep_count: Count = 5

    """When to save: every so many steps, every so many seconds, or, where neither is set, at
    intervals chosen from what a save costs and how often workers are lost. What becomes of a save
    that is due while one is under way (postponed until that one has ended, or training waits), and
    for how long nothing may move in a save before it is given up."""
    checkpoint_every: Index = 0
    checkpoint_interval_s: Seconds | None = None
    checkpoint_adaptive: bool = True
    checkpoint_when_busy: Literal["postpone", "wait"] = "postpone"
    checkpoint_timeout_s: Seconds = 300.0

    """Where datasets from object storage are kept on a host for all of its workers (no folder: one
    of the user's among the temporary files), and how much of them."""
    data_cache_dir: str = ""
    data_cache_bytes: Annotated[int, Meta(ge=1, le=2**60)] = 32 * 2**30

    """Who may use the storage; the usual names of AWS. Whether to ask the cloud's metadata address
    for credentials of the machine's role where no others are set."""
    aws_region: str = ""
    aws_access_key_id: str = ""
    aws_secret_access_key: str = ""
    aws_session_token: str = ""
    aws_endpoint_url: str = ""
    aws_instance_role: bool = False

    """Who a training process is; set by whoever starts it."""
    coordinator_addr: str = ""
    task: str = ""
    start: Index = 0
    worker_id: str = ""
    rank: Index | None = None
    world_size: Count | None = None
    wrapper: str = ""
    gpu_count: Index | None = None

    """Whether a worker's SDK takes stdout and stderr in (off where an agent reads the pipes), and
    from which level on its lines are handed to the coordinator."""
    capture_output: bool = True
    capture_level: Literal["debug", "info", "warn", "error"] = "debug"

    """Where a worker keeps events until they are stored (no folder: one of the user's among the
    temporary files), how much of it, and how often it records what it uses, and how far a long
    operation is."""
    spool_dir: str = ""
    spool_max_bytes: Count = 64 * 2**20
    resource_interval_s: Seconds = 30.0
    progress_interval_s: Seconds = 5.0

    """What is logged: levels by room, such as `coordinator=debug,info`, and in which form."""
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

# What the S3 library takes credentials from, beside the keys in the settings.
AWS_IDENTITIES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)

# What a process is told about itself; it never passes to the processes that it starts.
IDENTITY = ("coordinator_addr", "task", "start", "worker_id", "rank", "world_size", "wrapper")

# Numbers of workers, as launchers tell them: torchrun, Slurm, Open MPI, MPICH, MVAPICH, Flux.
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
# Set for one of several whatever the number: an indexed Kubernetes job, torchrun.
INDICES = ("JOB_COMPLETION_INDEX", "TORCHELASTIC_RUN_ID")

VARIABLES = {name: (PREFIX + name.upper(), *ALIASES.get(name, ())) for name in FIELDS}


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Settings:
    """Merge the sources and check them. A flag that is None was not given."""
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
            hint="a worker needs time for at least one beat before it counts as lost",
        )
    return settings


def load_process(flags: Mapping[str, object], file: Path | None = None) -> Settings:
    """`load` with this process's environment, and `strata.toml` where no file is named.

    Variables that the environment does not have are taken from `.env`.
    """
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    return load(flags, {**variables_in(VARIABLES_FILE), **os.environ}, file)


def variables_in(file: Path) -> dict[str, str]:
    """The variables of a file with a line `NAME=value` for each; none if there is no such file."""
    try:
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{file} cannot be read: {error}", hint="check the file") from error
    found: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if not separator or name.startswith("#"):
            continue
        text = value.strip()
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        found[name.strip()] = text[1:-1] if quoted else text
    return found


def aws_identity() -> str:
    """The variable by which the S3 library finds credentials, or may do without; or nothing."""
    return next((name for name in AWS_IDENTITIES if os.environ.get(name)), "")


def inherited() -> dict[str, str]:
    """This process's environment without who it is, for a process that is somebody else."""
    own = {variable for name in IDENTITY for variable in VARIABLES[name]}
    return {name: value for name, value in os.environ.items() if name not in own}


def variable_of_several_workers() -> str:
    """The variable that shows this process to be one of several workers, with its value."""
    for name in SIZES:
        size = os.environ.get(name, "").strip()
        if size.isdecimal() and int(size) > 1:
            return f"{name}={size}"
    return next((f"{name}={os.environ[name]}" for name in INDICES if os.environ.get(name)), "")


def replace_environment(environment: Mapping[str, str]) -> None:
    """Gives this process exactly that environment."""
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


@contextmanager
def without_sizes() -> Iterator[None]:
    """Hide how many workers there are, and which one this is, from a library that would join them.

    Only for as long as the library looks; not while other threads read the environment.
    """
    names = (*SIZES, "RANK", "LOCAL_RANK")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def export(variables: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries that read them."""
    os.environ.update(variables)


def tell_grpc() -> None:
    """Switches gRPC's own fork support off; it looks for that when it is first imported.

    With a stream open its handlers make forks slow and the exit of a process that forked hang.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def tell_ray() -> None:
    """Switches Ray's usage statistics off; it looks for that when it is first imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def let_runs_handle_nccl_errors() -> None:
    """Keep PyTorch from ending this process when a nccl collective fails; the run recovers itself.

    PyTorch reads the variable when it makes a process group.
    """
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")


def use_interface(name: str) -> None:
    """Let gloo and nccl use a network interface, unless the environment names another one."""
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def from_file(file: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(
            f"cannot read {file}: {error.strerror}", hint="check its name and permissions"
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingError(
            f"{file} is not valid TOML: {error}", hint="mend that line: name = value"
        ) from error
    refuse_unknown(values, FIELDS, str(file))
    return {name: checked(name, value, f"in {file}") for name, value in values.items()}


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


def refuse_unknown(names: Iterable[str], known: Iterable[str], source: str) -> None:
    candidates = sorted(known)
    for name in names:
        if name not in candidates:
            (closest,) = difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)
            raise SettingError(
                f"there is no setting {name!r}, found in {source}", hint=f"did you mean {closest}?"
            )


def checked(name: str, value: object, source: str, *, strict: bool = True) -> object:
    """The value as the field's type; text becomes a number or a bool only when not strict."""
    try:
        return msgspec.convert(value, FIELDS[name].type, strict=strict)
    except msgspec.ValidationError as error:
        raise SettingError(f"{name} is {shown(name, value)!r} {source}", hint=str(error)) from error


def shown(name: str, value: object) -> object:
    return "***" if name in SECRETS and value else value
