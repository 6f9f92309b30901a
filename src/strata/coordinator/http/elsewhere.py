"""A dashboard that is served elsewhere, and was told by `VITE_API_URL` where its coordinator is.

A browser lets a page of another origin ask and read only where the answers say so. They do to the
one origin that the setting `page_origin` names, and to no other. The cookie that stands for the
token goes along where both are of one site: one host, whatever the ports.
"""

from urllib.parse import urlsplit

from strata.errors import SettingError

Headers = list[tuple[bytes, bytes]]


def check_page_origin(origin: str) -> None:
    """Refuses what no browser would ever send as an origin."""
    parts = urlsplit(origin)
    if origin != f"{parts.scheme}://{parts.netloc.lower()}" or not parts.netloc:
        raise SettingError(
            f"page_origin is {origin!r}",
            hint="name scheme, host and port alone, such as http://localhost:8080",
        )


def permission(origin: str) -> Headers:
    """What tells a browser that a page of this origin may ask and read."""
    return [
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"content-type"),
        (b"access-control-expose-headers", b"x-total-count, x-next-cursor"),
        (b"vary", b"origin"),
    ]
