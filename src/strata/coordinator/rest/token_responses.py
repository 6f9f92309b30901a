"""What the API takes and answers about tokens; shared with the command line."""

from typing import Annotated

from msgspec import Meta, Struct

from strata.core.state import Role


class MakeTokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A token to make; a token of the role `worker` may be bound to a task."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    role: Role
    task_id: Annotated[str, Meta(max_length=200)] = ""
    expires_in_s: Annotated[float, Meta(ge=0, le=3_153_600_000)] = 0
    """Seconds until it expires; 0: never."""


class TokenResponse(Struct, frozen=True):
    """A token that was made, without its secret. `expires_at` is null if it does not expire."""

    name: str
    role: Role
    task_id: str
    made_at: int
    expires_at: int | None
    expired: bool


class MadeTokenResponse(Struct, frozen=True):
    """A new token. The secret is in this answer only."""

    token: TokenResponse
    secret: str


class RevokedTokenResponse(Struct, frozen=True):
    """A token that was revoked."""

    name: str
