"""Endpoints of access tokens: list, make and revoke them."""

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody

from strata.coordinator.access.keyring import digest_of, new_token
from strata.coordinator.rest.error_responses import READS, WRITES
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Key,
    Limit,
    page,
    paged,
)
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.token_responses import (
    MadeTokenResponse,
    MakeTokenRequest,
    RevokedTokenResponse,
    TokenResponse,
)
from strata.core.access.access_tokens import MakeToken, RevokeToken
from strata.core.state import AccessToken

MS_NS = 1_000_000


def shown(token: AccessToken, now_ns: int) -> TokenResponse:
    """A token as the API shows it."""
    return TokenResponse(
        name=token.name,
        role=token.role,
        task_id=token.task,
        made_at=token.made_ns // MS_NS,
        expires_at=token.expires_ns // MS_NS if token.expires_ns else None,
        expired=bool(token.expires_ns) and token.expires_ns <= now_ns,
    )


def by_name(token: AccessToken) -> Key:
    """Sort key by name, with `ci-9` before `ci-10`."""
    return len(token.name), token.name, ""


@get("/tokens", responses=READS, response_headers=HEADERS)
async def list_tokens(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[TokenResponse]]:
    """Tokens that were made and not revoked, by name. Needs the role admin."""
    now_ns = api.engine.kernel.clock().wall_ns
    async with api.engine.settled() as state:
        found = page(state.tokens.values(), by_name, limit, cursor)
        items = [shown(token, now_ns) for token in found.items]
        return paged(items, found.total, found.next_cursor)


@post("/tokens", responses=WRITES)
async def make_token(api: TheApi, data: JSONBody[MakeTokenRequest]) -> MadeTokenResponse:
    """Make a token. Its secret is in this answer only. Needs the role admin."""
    secret, now_ns = new_token(), api.engine.kernel.clock().wall_ns
    made = await api.engine.submit(
        MakeToken(
            token=data.name,
            role=data.role,
            digest=digest_of(secret),
            task=data.task_id,
            expires_ns=now_ns + int(data.expires_in_s * 1e9) if data.expires_in_s else 0,
        )
    )
    assert isinstance(made, AccessToken)
    return MadeTokenResponse(shown(made, now_ns), secret)


@post("/tokens/{name:str}/revoke", status_code=200, responses=WRITES)
async def revoke_token(api: TheApi, name: FromPath[str]) -> RevokedTokenResponse:
    """Refuse a token from now on; its open sessions and streams end. Needs the role admin."""
    await api.engine.submit(RevokeToken(token=name))
    return RevokedTokenResponse(name)


ENDPOINTS = [list_tokens, make_token, revoke_token]
