"""The dashboard's files, and its access to an API on another origin.

The files are read once at the start, so that no request reads a path on disk. Files that the build
named after their content are cached for ever; the HTML document is revalidated each time and
answered with 304 if it is unchanged. Files are compressed with gzip when first requested.

A dashboard and its API may be served from different origins:

- `page_origin` is the one other origin whose dashboard may call this API; its responses get CORS
  headers. The browser sends the session cookie if both have the same host, whatever the ports.
- `page_api_url` (`VITE_API_URL`) is the API that the dashboard served here calls. The coordinator
  writes it into a placeholder of the HTML document and allows its origin in the content security
  policy.

`standby_pages` are the dashboards of other coordinators. They are in the document and the policy
too, so that the dashboard can find one that answers, and change to it.
"""

import gzip
import hashlib
import html
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from strata.errors import SettingError

Headers = list[tuple[bytes, bytes]]


def check_page_origin(origin: str) -> None:
    """Raise unless the setting is an origin as browsers send it."""
    parts = urlsplit(origin)
    if origin != f"{parts.scheme}://{parts.netloc.lower()}" or not parts.netloc:
        raise SettingError(
            f"page_origin is {origin!r}, which is not an origin",
            hint="give only scheme, host and port, such as http://localhost:8080",
        )


def check_api_url(url: str) -> None:
    """Raise unless the setting is a path or a URL that fits in an HTTP header."""
    parts = urlsplit(url)
    is_path = url.startswith("/") and not url.startswith("//") and not parts.netloc
    is_url = parts.scheme in ("http", "https") and bool(parts.netloc) and "@" not in parts.netloc
    if not (is_path or is_url) or not is_plain(url) or parts.query or parts.fragment:
        raise SettingError(
            f"page_api_url is {url!r}, which is neither a path nor a URL",
            hint="give a path such as /strata/api, or a URL such as http://10.0.0.5:3000/api",
        )


def is_plain(url: str) -> bool:
    """Whether a URL can be written into an HTTP header as it is."""
    return url.isascii() and url.isprintable() and not set(url) & set(" \"'<>;,\\")


def page_urls(urls: str) -> list[str]:
    """The URLs of `standby_pages`; raises unless each is one of a dashboard."""
    found = [each.strip().rstrip("/") for each in urls.split(",") if each.strip()]
    for url in found:
        is_origin = url == api_origin(url) and url.startswith(("http://", "https://"))
        if not is_origin or not is_plain(url) or "@" in url:
            raise SettingError(
                f"standby_pages has {url!r}, which is not the address of a dashboard",
                hint="give scheme, host and port, such as http://head2:3000",
            )
    return found


def api_origin(url: str) -> str:
    """The origin of an API's URL; empty for a path, which has the dashboard's own origin."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


def cors_headers(origin: str) -> Headers:
    """The CORS headers that allow pages of an origin to call the API."""
    return [
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", b"content-type"),
        (b"access-control-expose-headers", b"x-total-count, x-next-cursor"),
        (b"vary", b"origin"),
    ]


FOLDER = Path(__file__).parents[2] / "webui"
INDEX = "/index.html"
NAMED_BY_CONTENT = "/assets/"
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
}
COMPRESSED_TYPES = {"font/woff2", "image/png"}
PLACEHOLDER = '<meta name="strata-{}" content=""'


class File:
    """The bytes of a file, plain and compressed."""

    def __init__(self, content: bytes, media_type: str, caching: str = REVALIDATE) -> None:
        self.content = content
        self.media_type = media_type
        self.caching = caching
        self.etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'

    @cached_property
    def compressed(self) -> bytes:
        """The content compressed with gzip, without a timestamp."""
        return gzip.compress(self.content, mtime=0)

    def answer(self, headers: Any) -> Response[bytes]:
        """The response to a request with these headers."""
        sent = {"ETag": self.etag, "Cache-Control": self.caching, "Vary": "Accept-Encoding"}
        if headers.get("if-none-match") == self.etag:
            return Response(b"", status_code=304, headers=sent, media_type=self.media_type)
        gzipped = "gzip" in headers.get("accept-encoding", "")
        if gzipped and self.media_type not in COMPRESSED_TYPES:
            sent["Content-Encoding"] = "gzip"
            return Response(self.compressed, headers=sent, media_type=self.media_type)
        return Response(self.content, headers=sent, media_type=self.media_type)


def load(folder: Path = FOLDER, **given: str) -> dict[str, File]:
    """The files by the path they are served at; the document with the `given` contents."""
    files: dict[str, File] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix in TYPES:
            path = f"/{file.relative_to(folder).as_posix()}"
            caching = IMMUTABLE if path.startswith(NAMED_BY_CONTENT) else REVALIDATE
            content = file.read_bytes()
            if path == INDEX:
                content = filled_in(content, given)
            files[path] = File(content, TYPES[file.suffix], caching)
    return {"/": files[INDEX], **files} if INDEX in files else files


def filled_in(document: bytes, given: dict[str, str]) -> bytes:
    """The document with the contents of its placeholders, such as `api_url`."""
    for name, content in given.items():
        placeholder = PLACEHOLDER.format(name.replace("_", "-")).encode()
        assert document.count(placeholder) == 1, f"web/index.html has no placeholder for {name}"
        text = html.escape(content, quote=True).encode()
        document = document.replace(placeholder, placeholder[:-1] + text + b'"')
    return document


def serving(path: str, file: File) -> HTTPRouteHandler:
    """An endpoint that serves a file."""

    @get(path, include_in_schema=False, media_type=file.media_type, name=f"file {path}")
    async def serve_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        return file.answer(request.headers)

    return serve_file
