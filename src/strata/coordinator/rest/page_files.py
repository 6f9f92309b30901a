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
    plain = url.isascii() and url.isprintable() and not set(url) & set(" \"'<>;,\\")
    if not (is_path or is_url) or not plain or parts.query or parts.fragment:
        raise SettingError(
            f"page_api_url is {url!r}, which is neither a path nor a URL",
            hint="give a path such as /strata/api, or a URL such as http://10.0.0.5:3000/api",
        )


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
API_URL = b'<meta name="strata-api-url" content=""'


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


def load(folder: Path = FOLDER, api_url: str = "") -> dict[str, File]:
    """The files by the path they are served at, with the URL of the API in the document."""
    files: dict[str, File] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix in TYPES:
            path = f"/{file.relative_to(folder).as_posix()}"
            caching = IMMUTABLE if path.startswith(NAMED_BY_CONTENT) else REVALIDATE
            content = file.read_bytes()
            if path == INDEX and api_url:
                content = with_api_url(content, api_url)
            files[path] = File(content, TYPES[file.suffix], caching)
    return {"/": files[INDEX], **files} if INDEX in files else files


def with_api_url(document: bytes, api_url: str) -> bytes:
    """The document with the URL of the API filled in."""
    assert document.count(API_URL) == 1, "web/index.html has no placeholder for the API's URL"
    given = html.escape(api_url, quote=True).encode()
    return document.replace(API_URL, API_URL[:-1] + given + b'"')


def serving(path: str, file: File) -> HTTPRouteHandler:
    """An endpoint that serves a file."""

    @get(path, include_in_schema=False, media_type=file.media_type, name=f"file {path}")
    async def serve_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        return file.answer(request.headers)

    return serve_file
