"""JSON bodies, decoded strictly: a number in quotes is not a number, an unknown field is refused.

The framework converts leniently, which is right for a query string and wrong for JSON. What is
refused names the field.
"""

from typing import Any

import msgspec
from litestar import Request

from strata.errors import InvalidArgument

JSON = "application/json"


class StrictRequest(Request[Any, Any, Any]):
    """A request whose JSON body is decoded as what the endpoint takes in."""

    async def json(self) -> Any:
        """The body, as the type that the endpoint declares."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON:
            raise InvalidArgument(
                f"the body is {media_type or 'of no type'}", hint=f"send it as {JSON}"
            )
        expected = self.route_handler.parsed_data_field
        assert expected is not None, "only endpoints that declare a body read it"
        try:
            return msgspec.json.decode(await self.body(), type=expected.annotation)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                worded(str(error)), hint="GET /api/openapi.json says what is expected"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(
                f"the body is not JSON: {error}", hint="send one JSON object"
            ) from error


def worded(fault: str) -> str:
    """What is wrong, with the field in front: `worker_count: Expected `int`, got `str``."""
    text, _, path = fault.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{field}: {text}" if field else text
