"""A dashboard and an API that are served from different addresses.

`page_origin` names the one other origin whose dashboard may call this API: a browser lets a page of
another origin call an API only where the answers allow it. The cookie that stands for the token is
sent where both have one host, whatever the ports.

`page_api_url` (`VITE_API_URL`) names the API that the dashboard served here calls. The coordinator
writes it into the document that it serves, and allows its origin in the content security policy.
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


def check_api_url(url: str) -> None:
    """Refuse what is neither a path nor the URL of an API, and what a header cannot hold."""
    parts = urlsplit(url)
    is_path = url.startswith("/") and not url.startswith("//") and not parts.netloc
    is_url = parts.scheme in ("http", "https") and bool(parts.netloc) and "@" not in parts.netloc
    plain = url.isascii() and url.isprintable() and not set(url) & set(" \"'<>;,\\")
    if not (is_path or is_url) or not plain or parts.query or parts.fragment:
        raise SettingError(
            f"page_api_url is {url!r}",
            hint="give a path such as /strata/api, or a URL such as http://10.0.0.5:3000/api",
        )


def api_origin(url: str) -> str:
    """The origin of an API's URL; empty for a path, which is on the dashboard's own origin."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


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
