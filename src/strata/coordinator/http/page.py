"""The page: static files, read once at the start, so that no request names a path on disk.

The document has a place for the address of the API, which is filled in here where one is set.

What the build named after its content may be kept for ever; the document that names them is asked
for anew each time, and answered with 304 while it is the same. A browser that can is sent gzip,
made once, when it is first asked for.
"""

import gzip
import hashlib
import html
from functools import cached_property
from pathlib import Path
from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

FOLDER = Path(__file__).parents[2] / "webui"
INDEX = "/index.html"
NAMED_BY_CONTENT = "/assets/"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
}
SMALL_ALREADY = {"font/woff2"}
API_URL = b'<meta name="strata-api-url" content=""'


class File:
    """The bytes of a file, as they are and compressed."""

    def __init__(self, content: bytes, media_type: str, caching: str = ASK_AGAIN) -> None:
        self.content = content
        self.media_type = media_type
        self.caching = caching
        self.etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'

    @cached_property
    def compressed(self) -> bytes:
        """The content with gzip, without a date in it."""
        return gzip.compress(self.content, mtime=0)

    def answer(self, headers: Any) -> Response[bytes]:
        """What a request with these headers gets."""
        told = {"ETag": self.etag, "Cache-Control": self.caching, "Vary": "Accept-Encoding"}
        if headers.get("if-none-match") == self.etag:
            return Response(b"", status_code=304, headers=told, media_type=self.media_type)
        gzipped = "gzip" in headers.get("accept-encoding", "")
        if gzipped and self.media_type not in SMALL_ALREADY:
            told["Content-Encoding"] = "gzip"
            return Response(self.compressed, headers=told, media_type=self.media_type)
        return Response(self.content, headers=told, media_type=self.media_type)


def load(folder: Path = FOLDER, api_url: str = "") -> dict[str, File]:
    """The files by the path they are served at; the document names the API's address if there is
    one."""
    files: dict[str, File] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix in TYPES:
            path = f"/{file.relative_to(folder).as_posix()}"
            caching = FOR_EVER if path.startswith(NAMED_BY_CONTENT) else ASK_AGAIN
            content = file.read_bytes()
            if path == INDEX and api_url:
                content = with_api_url(content, api_url)
            files[path] = File(content, TYPES[file.suffix], caching)
    return {"/": files[INDEX], **files} if INDEX in files else files


def with_api_url(document: bytes, api_url: str) -> bytes:
    """The document with the address of the API in its place."""
    assert document.count(API_URL) == 1, "web/index.html has no place for the address of the API"
    given = html.escape(api_url, quote=True).encode()
    return document.replace(API_URL, API_URL[:-1] + given + b'"')


def serving(path: str, file: File) -> HTTPRouteHandler:
    """An endpoint that answers with this file."""

    @get(path, include_in_schema=False, media_type=file.media_type, name=f"file {path}")
    async def serve_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        return file.answer(request.headers)

    return serve_file
