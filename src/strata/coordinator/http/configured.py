"""How this coordinator was set up, as people may see it: secrets are only said to be set."""

from litestar import get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct

from strata.config import Settings, shown
from strata.coordinator.http.faults import READS

TheSettings = NamedDependency[SkipValidation[Settings]]


class SettingsResponse(Struct, frozen=True):
    """Every setting by name; a secret that is set is `***`. `token_needed` says how to get in."""

    token_needed: bool
    encrypted: bool
    storage: str
    values: dict[str, str | float | bool | None]


@get("/settings", responses=READS)
async def get_settings(settings: TheSettings) -> SettingsResponse:
    """The settings that this coordinator runs with, without secrets."""
    return SettingsResponse(
        token_needed=bool(settings.token),
        encrypted=bool(settings.tls_cert),
        storage=storage(settings),
        values={
            name: shown(name, getattr(settings, name))  # type: ignore[misc]  # plain values all
            for name in settings.__struct_fields__
        },
    )


def storage(settings: Settings) -> str:
    """Where checkpoints go."""
    if settings.storage_backend == "s3":
        return f"s3://{settings.checkpoint_bucket}"
    return settings.checkpoint_dir or f"{settings.data_dir}/checkpoints"
