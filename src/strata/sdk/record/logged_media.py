"""Images, texts and histograms for `run.log` and `step.log`, beside numbers.

    run.log(sample=strata.Image(pixels, caption="step 100"), weights=strata.Histogram(values))

Each is converted, checked and copied when it is made, so that the script may change its array
afterwards, and an error names the line that made it. They are small on purpose: they are stored
with the run's events.
"""

import io
from pathlib import Path
from typing import Any, ClassVar, SupportsFloat, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata import extras
from strata.core.workers.worker_facts import MediaKind, MediaLogged
from strata.errors import InvalidArgument, LimitExceeded
from strata.sdk.record.png_encoding import encoded, pixels_of

IMAGE_BYTES = 256 * 1024
TEXT_BYTES = 16 * 1024
CAPTION_CHARACTERS = 1_000
MAX_BINS = 512
OVERHEAD_BYTES = 200
"""What an event takes besides its content, towards the limit of the task."""

FORMATS = {"PNG": "png", "JPEG": "jpeg", "GIF": "gif", "WEBP": "webp"}


class Moment(Struct, frozen=True):
    """When something is logged: in step `step`, or after so many steps."""

    step: int
    in_step: bool
    generation: int


class Media:
    """What `run.log` accepts beside numbers."""

    kind: ClassVar[MediaKind]
    size_bytes: int

    def fact(self, name: str, moment: Moment) -> MediaLogged:
        """The fact that records it."""
        raise NotImplementedError


Loggable: TypeAlias = SupportsFloat | Media


class Image(Media):
    """An image: an array, a PIL image, the bytes of an image file, or the path of one.

    An array is height × width, or height × width × 3 or 4, of uint8 or of floats from 0 to 1; it is
    encoded as PNG. The encoded image has at most 256 KiB.
    """

    kind = "image"

    def __init__(self, source: Any, caption: str = "") -> None:
        self.caption = _caption(caption)
        if isinstance(source, str | Path):
            source = _read(Path(source))
        if isinstance(source, bytes | bytearray | memoryview):
            self.data = bytes(source)
            self.format, self.width, self.height = _looked_up(self.data)
        elif hasattr(source, "save") and hasattr(source, "getbands"):
            buffer = io.BytesIO()
            source.save(buffer, format="PNG")
            self.data, self.format = buffer.getvalue(), "png"
            self.width, self.height = source.size
        else:
            pixels = pixels_of(_array(source))
            self.height, self.width = pixels.shape[:2]
            self.data, self.format = encoded(pixels), "png"
        if len(self.data) > IMAGE_BYTES:
            raise LimitExceeded(
                f"an image of {self.width} × {self.height} pixels takes {len(self.data):,} bytes "
                f"as {self.format.upper()}, but an image may take {IMAGE_BYTES:,}",
                hint="make it smaller, for example image[::2, ::2], or pass JPEG bytes",
            )
        self.size_bytes = OVERHEAD_BYTES + len(self.data) + len(self.caption)

    def fact(self, name: str, moment: Moment) -> MediaLogged:
        """The fact that records it."""
        return MediaLogged(
            name=name,
            media=self.kind,
            step=moment.step,
            in_step=moment.in_step,
            generation=moment.generation,
            size_bytes=self.size_bytes,
            caption=self.caption,
            format=self.format,
            width=self.width,
            height=self.height,
            data=self.data,
        )


class Text(Media):
    """A text of at most 16 KiB."""

    kind = "text"

    def __init__(self, text: str, caption: str = "") -> None:
        self.text, self.caption = str(text), _caption(caption)
        size_bytes = len(self.text.encode(errors="surrogatepass"))
        if size_bytes > TEXT_BYTES:
            raise LimitExceeded(
                f"a text takes {size_bytes:,} bytes, but a text may take {TEXT_BYTES:,}",
                hint="log a part of it; write long texts to a file or with print",
            )
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"a text cannot be encoded as UTF-8: {error.reason} at character {error.start}",
                hint="decode bytes with errors='replace'",
            ) from error
        self.size_bytes = OVERHEAD_BYTES + size_bytes + len(self.caption)

    def fact(self, name: str, moment: Moment) -> MediaLogged:
        """The fact that records it."""
        return MediaLogged(
            name=name,
            media=self.kind,
            step=moment.step,
            in_step=moment.in_step,
            generation=moment.generation,
            size_bytes=self.size_bytes,
            caption=self.caption,
            text=self.text,
        )


class Histogram(Media):
    """How values are distributed, in up to 512 bins between the lowest and the highest.

    Values that are not finite are in no bin; they are counted. Counts that are known already are
    given as `Histogram.of(counts, edges)`.
    """

    kind = "histogram"

    def __init__(self, values: Any, bins: int = 64, caption: str = "") -> None:
        if not 1 <= bins <= MAX_BINS:
            raise InvalidArgument(
                f"a histogram cannot have {bins} bins", hint=f"use 1 to {MAX_BINS}"
            )
        every = _array(values).ravel()
        if every.dtype.kind not in "biuf" or not every.size:
            raise InvalidArgument(
                f"a histogram cannot be made of {every.size} values of {every.dtype}",
                hint="pass one number or more",
            )
        every = every.astype(np.float64)
        finite = every[np.isfinite(every)]
        edges: list[float] = []
        counts: list[int] = []
        if finite.size:
            counted, found = np.histogram(finite, bins=bins)
            edges, counts = found.tolist(), counted.tolist()
        self._set(edges, counts, every.size - finite.size, caption)

    @classmethod
    def of(cls, counts: Any, edges: Any, caption: str = "") -> "Histogram":
        """A histogram of known counts, with one edge more, in increasing order."""
        numbers, borders = _array(counts).ravel(), _array(edges).ravel().astype(np.float64)
        if not 1 <= len(numbers) <= MAX_BINS:
            raise InvalidArgument(
                f"a histogram cannot have {len(numbers)} bins", hint=f"use 1 to {MAX_BINS}"
            )
        if len(borders) != len(numbers) + 1 or not (np.diff(borders) > 0).all():
            raise InvalidArgument(
                f"{len(borders)} edges do not fit {len(numbers)} counts",
                hint="pass one edge more than counts, in increasing order",
            )
        if not np.isfinite(borders).all() or not (numbers >= 0).all():
            raise InvalidArgument(
                "a histogram has edges that are not finite, or negative counts",
                hint="leave out values that are not finite before counting",
            )
        if not (numbers == np.rint(numbers)).all():
            raise InvalidArgument(
                "a histogram has counts that are not whole numbers",
                hint="pass counts, not densities",
            )
        made = cls.__new__(cls)
        made._set(borders.tolist(), [int(each) for each in numbers], 0, caption)
        return made

    def _set(
        self, edges: list[float], counts: list[int], not_finite: int, caption: str = ""
    ) -> None:
        self.edges, self.counts, self.not_finite = edges, counts, not_finite
        self.caption = _caption(caption)
        self.size_bytes = OVERHEAD_BYTES + 8 * (len(edges) + len(counts)) + len(self.caption)

    def fact(self, name: str, moment: Moment) -> MediaLogged:
        """The fact that records it."""
        return MediaLogged(
            name=name,
            media=self.kind,
            step=moment.step,
            in_step=moment.in_step,
            generation=moment.generation,
            size_bytes=self.size_bytes,
            caption=self.caption,
            edges=self.edges,
            counts=self.counts,
            not_finite=self.not_finite,
        )


def _caption(caption: str) -> str:
    if len(caption) > CAPTION_CHARACTERS:
        raise LimitExceeded(
            f"a caption has {len(caption):,} characters",
            hint=f"use at most {CAPTION_CHARACTERS:,}, or log it as strata.Text",
        )
    return caption


def _array(source: Any) -> NDArray[Any]:
    """An array on this host, also of a tensor on a GPU."""
    detach = getattr(source, "detach", None)
    if detach is not None:
        source = detach().cpu()
        if str(source.dtype) == "torch.bfloat16":  # NumPy has no such type
            source = source.float()
        source = source.numpy()
    try:
        return np.asarray(source)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{type(source).__name__} cannot be read as an array: {error}",
            hint="pass a NumPy array or a tensor",
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"the image {path} cannot be read: {error.strerror}", hint="check the path"
        ) from error


def _looked_up(data: bytes) -> tuple[str, int, int]:
    """The format, width and height of an image file; raises if it is not one."""
    extras.check("PIL")
    import PIL.Image  # takes longer to import than most scripts log images

    try:
        with PIL.Image.open(io.BytesIO(data), formats=list(FORMATS)) as image:
            image.load()
            return FORMATS[image.format or ""], image.width, image.height
    except (OSError, ValueError, SyntaxError, KeyError, PIL.Image.DecompressionBombError) as error:
        raise InvalidArgument(
            f"{len(data):,} bytes are not a whole image file: {error}",
            hint="pass a PNG, JPEG, GIF or WebP file, or an array",
        ) from error
