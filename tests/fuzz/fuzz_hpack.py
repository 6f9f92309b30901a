"""Header blocks of HTTP/2: fields as a client encodes them, or an error of HPACK."""

from hpack import Encoder

from strata.wire.http2.hpack import HeaderBlockError, HeaderDecoder, read_request
from tests.wire.harness import request_fields

LIST_BYTES = 8_192


def seeds() -> list[bytes]:
    plain, more = request_fields("/strata.v1.Coordinator/Session"), [("grpc-timeout", "5S")]
    metadata = [("token-bin", "AAECAw=="), ("x", "y" * 40)]
    encoder = Encoder()
    blocks = [encoder.encode(plain), encoder.encode(plain + more), encoder.encode(plain + metadata)]
    blocks.append(Encoder().encode(plain + more + metadata, huffman=False))
    return [_joined(blocks), *(_joined([block]) for block in blocks)]


def _joined(blocks: list[bytes]) -> bytes:
    return b"".join(len(block).to_bytes(2, "big") + block for block in blocks)


def check(data: bytes) -> None:
    """The input is several blocks of one connection, each after its length."""
    decoder = HeaderDecoder(read_request, LIST_BYTES)
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        try:
            decoder.decode(data[at + 2 : at + 2 + size])
        except HeaderBlockError:
            return
        at += 2 + size
        assert decoder.list_bytes <= LIST_BYTES
        assert decoder.held_bytes <= 64 * 1024
