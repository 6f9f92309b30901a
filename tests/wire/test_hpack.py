"""Header blocks compared with the reference codec, and gRPC's heads and trailers."""

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from strata.wire.http2.hpack import (
    HeaderBlockError,
    HeaderDecoder,
    HeaderListTooLarge,
    Outcome,
    Status,
    encode_fields,
    encode_trailers,
    read_request,
)
from tests.wire.harness import request_fields

LIMIT_BYTES = 65_536

names = st.sampled_from([b"a", b"te", b"grpc-timeout", b"content-type", b":path", b"x" * 200])
values = st.one_of(st.sampled_from([b"", b"/a", b"trailers"]), st.binary(max_size=3_000))
lists = st.lists(st.tuples(names, values), max_size=12)


def fields_decoder() -> HeaderDecoder[list[tuple[bytes, bytes]]]:
    return HeaderDecoder(list, LIMIT_BYTES)


@given(st.lists(st.tuples(lists, st.booleans(), st.integers(0, 4_096) | st.none()), max_size=10))
def test_blocks_of_the_reference_encoder_are_decoded(blocks):
    """The table persists between blocks, also if the encoder resizes it."""
    encoder, decoder = Encoder(), fields_decoder()
    for fields, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == fields


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_decode_like_the_reference_or_fail(blocks):
    reference, decoder = Decoder(LIMIT_BYTES), fields_decoder()
    for block in blocks:
        try:
            fields = decoder.decode(block)
        except HeaderBlockError:
            return
        assert fields == [(bytes(n), bytes(v)) for n, v in reference.decode(block, raw=True)]


@given(lists)
def test_reference_decoder_reads_our_blocks(fields):
    decoded = Decoder(10**6).decode(encode_fields(fields), raw=True)
    assert [(bytes(name), bytes(value)) for name, value in decoded] == fields


def test_block_is_cached_until_the_table_changes():
    seen = []
    decoder = HeaderDecoder(lambda fields: seen.append(fields) or fields, LIMIT_BYTES)
    encoder = Encoder()
    first = encoder.encode([("name", "one")])
    again = encoder.encode([("name", "one")])
    decoder.decode(first)
    assert decoder.decode(again) is decoder.decode(again)
    assert len(seen) == 2
    decoder.decode(encoder.encode([("name", "two")]))
    assert decoder.decode(again) == [(b"name", b"two")]


def test_cache_of_blocks_is_bounded():
    decoder = fields_decoder()
    for number in range(10_000):
        decoder.decode(encode_fields([(b"n", str(number).encode())]))
    assert len(decoder._remembered) <= 64


def test_large_header_list_in_a_small_block_is_refused():
    decoder = HeaderDecoder(list, 1_000)
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(b"\x82" * 100)


def head(*more: tuple[str, str]):
    return read_request(
        [(name.encode(), value.encode()) for name, value in request_fields("/a/b", *more)]
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3_600),
        ("2M", 120),
        ("3S", 3),
        ("4m", 0.004),
        ("5u", 5e-6),
        ("99999999n", 0.099999999),
    ],
)
def test_timeouts(text, seconds):
    assert head(("grpc-timeout", text)).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1x", "-1S", "1.5S", "123456789S", "²S"])
def test_invalid_timeouts(text):
    assert head(("grpc-timeout", text)).objection.status is Status.INVALID_ARGUMENT


@pytest.mark.parametrize("value", ["AAH+", "AAH+,BBBB", "AP8=", "AP8"])
def test_binary_metadata_may_lack_its_padding(value):
    assert isinstance(head(("key-bin", value)).metadata["key-bin"], bytes)


def test_metadata_is_immutable():
    with pytest.raises(TypeError):
        head(("a", "b")).metadata["a"] = "c"


def test_trailers_carry_status_message_and_metadata():
    outcome = Outcome(Status.NOT_FOUND, "50 % ü", [("a", "b"), ("c-bin", b"\x00\xff")])
    assert Decoder().decode(encode_trailers(outcome)) == [
        ("grpc-status", "5"),
        ("grpc-message", "50 %25 %C3%BC"),
        ("a", "b"),
        ("c-bin", "AP8="),
    ]


def test_long_status_message_is_cut():
    block = encode_trailers(Outcome(Status.INTERNAL, "x" * 100_000))
    assert len(block) < 2_000
