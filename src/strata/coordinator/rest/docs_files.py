"""The documentation site at `/docs`, as `make docs` built it or a wheel contains it.

The paths are listed once at the start, so that no request names a path on disk; a file is read when
it is first requested. A folder is opened with a slash at its end, because its page has relative
links. The site is public: it needs no token.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.utils.path import normalize_path

from strata.coordinator.rest.page_files import TYPES, File

FOLDER = Path(__file__).parents[2] / "docs_site"
PREFIX = "/docs"
INDEX = "index.html"
DOCUMENT_TYPES = TYPES | {".png": "image/png", ".txt": "text/plain; charset=utf-8"}
NOT_BUILT = (
    "The documentation site is not built.\n"
    "In a source checkout run `make docs`, and start the coordinator again.\n"
    "A wheel from `make package` contains the site.\n"
)


def listed() -> dict[str, Path]:
    """The files of the site by the path they are served at; a folder has the path of its index."""
    files: dict[str, Path] = {}
    for file in sorted(FOLDER.rglob("*")):
        if file.suffix in DOCUMENT_TYPES:
            path = f"{PREFIX}/{file.relative_to(FOLDER).as_posix()}"
            files[path] = file
            if file.name == INDEX:
                files[path.removesuffix(f"/{INDEX}")] = file
    return files


@cache
def read(file: Path) -> File:
    """A file with its type; kept, because all files of the site together are small."""
    return File(file.read_bytes(), DOCUMENT_TYPES[file.suffix])


def serving_docs(files: Mapping[str, Path]) -> HTTPRouteHandler:
    """The endpoint that serves the site, or says how to build it."""

    @get([PREFIX, f"{PREFIX}/{{path:path}}"], include_in_schema=False)
    async def serve_document(request: Request[Any, Any, Any]) -> Response[bytes]:
        if not files:
            return plain(404, NOT_BUILT)
        asked = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        file = files.get(normalize_path(asked))
        if file is None:
            return plain(404, "This page is not part of the documentation; see /docs.\n")
        if file.name == INDEX and not asked.endswith(("/", f"/{INDEX}")):
            return Response(b"", status_code=307, headers={"Location": f"{Path(asked).name}/"})
        return (await asyncio.to_thread(read, file)).answer(request.headers)

    return serve_document


def plain(status: int, text: str) -> Response[bytes]:
    """A response of plain text."""
    return Response(text.encode(), status_code=status, media_type="text/plain; charset=utf-8")
