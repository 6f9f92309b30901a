"""The page: static files, read once at the start, so that no request names a path on disk."""

from pathlib import Path

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

FOLDER = Path(__file__).parents[2] / "webui"
INDEX = "/index.html"

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def load(folder: Path = FOLDER) -> dict[str, tuple[bytes, str]]:
    """The files by the path they are served at, each with its media type."""
    files = {
        f"/{file.relative_to(folder).as_posix()}": (file.read_bytes(), TYPES[file.suffix])
        for file in sorted(folder.rglob("*"))
        if file.suffix in TYPES
    }
    return {"/": files[INDEX], **files} if INDEX in files else files


def serving(path: str, content: bytes, media_type: str) -> HTTPRouteHandler:
    """An endpoint that answers with these bytes."""

    @get(path, include_in_schema=False, media_type=media_type, name=f"file {path}")
    async def serve_file() -> Response[bytes]:
        return Response(content, media_type=media_type)

    return serve_file
