"""Records of TensorBoard's event files, encoded by hand.

The only library would be TensorBoard's own package: PyTorch's writer needs PyTorch as well. That
package brings a web server, a native data server and 20 MB; a file needs the five messages below
(`tensorboard/compat/proto/event.proto`, `summary.proto`) and a frame for each: its length, the
length's checksum, the event, its checksum. Tests read the files with TensorBoard itself.

Scalars are `simple_value`, a float32, which every reader of event files takes.
"""

import struct
from collections.abc import Mapping

from strata.core.workers.worker_facts import ConfigValue, MediaLogged

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MASK = 0xFFFFFFFF
DT_DOUBLE, DT_STRING = 2, 7
START = 1
STATUS = {"completed": 1, "failed": 2}
HPARAMS = "_hparams_"


def _table() -> list[int]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return found


_CRC32C = _table()


def masked_crc(data: bytes) -> int:
    """The masked CRC-32C of a frame."""
    crc, table = MASK, _CRC32C
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= MASK
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & MASK


def frame(event: bytes) -> bytes:
    """An event with its length and the checksums of both."""
    size = struct.pack("<Q", len(event))
    return b"".join(
        (size, struct.pack("<I", masked_crc(size)), event, struct.pack("<I", masked_crc(event)))
    )


def varint(number: int) -> bytes:
    """A whole number in protobuf's encoding."""
    number &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def part(number: int, content: bytes | str) -> bytes:
    """A field with bytes, a text or a message."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def whole(number: int, value: int) -> bytes:
    """A field with a whole number."""
    return varint(number << 3 | VARINT) + varint(value)


def double(number: int, value: float) -> bytes:
    """A field with a float64."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """A field with a float32; larger numbers become infinite."""
    try:
        return varint(number << 3 | FIXED32) + struct.pack("<f", value)
    except OverflowError:
        return varint(number << 3 | FIXED32) + struct.pack("<f", float("inf") * value)


def version(time_s: float) -> bytes:
    """The first event of a file."""
    return frame(double(1, time_s) + part(3, "brain.Event:2"))


def restart(time_s: float) -> bytes:
    """An event that makes a reader drop what earlier files of the folder had."""
    return frame(double(1, time_s) + whole(2, 0) + part(7, whole(1, START)))


def values(time_s: float, step: int, parts: list[bytes]) -> bytes:
    """An event with the values of a step."""
    summary = b"".join(part(1, each) for each in parts)
    return frame(double(1, time_s) + whole(2, step) + part(5, summary))


def scalar(tag: str, value: float) -> bytes:
    """A number."""
    return part(1, tag) + single(2, value)


def image(tag: str, item: MediaLogged, data: bytes) -> bytes:
    """An image file."""
    shown = whole(1, item.height) + whole(2, item.width) + whole(3, 3) + part(4, data)
    return part(1, tag) + part(4, shown)


def text(tag: str, content: str) -> bytes:
    """A text, which TensorBoard shows as Markdown."""
    tensor = whole(1, DT_STRING) + part(2, part(2, whole(1, 1))) + part(8, content)
    return part(1, tag) + part(8, tensor) + part(9, part(1, part(1, "text")))


def histogram(tag: str, edges: list[float], counts: list[int]) -> bytes:
    """Rows of left edge, right edge and count."""
    rows = [struct.pack("<3d", *row) for row in zip(edges, edges[1:], counts, strict=False)]
    shape = part(2, whole(1, len(rows))) + part(2, whole(1, 3))
    tensor = whole(1, DT_DOUBLE) + part(2, shape) + part(4, b"".join(rows))
    return part(1, tag) + part(8, tensor) + part(9, part(1, part(1, "histograms")))


def hyperparameters(config: Mapping[str, ConfigValue], began_s: float) -> bytes:
    """The configuration, for TensorBoard's table of hyperparameters."""
    entries = [part(1, part(1, name) + part(2, _value(value))) for name, value in config.items()]
    info = part(3, b"".join(entries) + double(5, began_s))
    return _session("session_start_info", info)


def outcome(state: str, time_s: float) -> bytes:
    """How the run ended, for the table of hyperparameters."""
    return _session("session_end_info", part(4, whole(1, STATUS.get(state, 0)) + double(2, time_s)))


def _session(name: str, info: bytes) -> bytes:
    plugin = part(1, "hparams") + part(2, info)
    empty = whole(1, 1) + part(2, part(2, whole(1, 0)))  # a tensor without elements
    return part(1, f"{HPARAMS}/{name}") + part(8, empty) + part(9, part(1, plugin))


def _value(value: ConfigValue) -> bytes:
    """A `google.protobuf.Value`."""
    if value is None:
        return whole(1, 0)
    if isinstance(value, bool):
        return whole(4, value)
    if isinstance(value, int | float):
        return double(2, value)
    return part(3, value)
