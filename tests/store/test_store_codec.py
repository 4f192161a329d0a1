import contextlib
import math

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import StoreError
from harness.store.codec import CorruptRecord, decode, encode

KEYS = st.text().filter(lambda key: key != "__array__")  # refused, as tested below
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_json_round_trips(value: object) -> None:
    """Every JSON value reads back equal, floats to the last bit and with the sign of zero."""
    assert repr(decode(encode(value, "record"))) == repr(value)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f8", "i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 3)])
def test_arrays_round_trip(dtype: str, shape: tuple[int, ...]) -> None:
    """An array reads back with the same dtype, shape and bits, and can be written to."""
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    back = decode(encode({"rows": [array]}, "record"))["rows"][0]

    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable


def test_views_round_trip() -> None:
    """A transposed, strided view is stored as it looks, not as it lies in memory."""
    view = np.arange(24.0).reshape(4, 6).T[::2]

    assert np.array_equal(decode(encode(view, "record")), view)


def test_numpy_scalars_become_python_numbers() -> None:
    """float64 keeps its value, float32 its exact value as a float64, integers and bools theirs."""
    value = [np.float64(0.1), np.float32(0.1), np.int32(7), np.bool_(True)]

    assert decode(encode(value, "record")) == [0.1, float(np.float32(0.1)), 7, True]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "rollouts is nan"),
        ({"reward": [1.0, 0.5, math.nan]}, r"rollouts.reward\[2\] is nan"),
        ([{"kl": np.float32("inf")}], r"rollouts\[0\].kl is inf"),
        ({"a": np.array([[0.0, 1.0], [-np.inf, 0.0]])}, r"rollouts.a\[1, 0\] is -inf"),
    ],
)
def test_nan_is_refused_where_it_sits(value: object, place: str) -> None:
    """NaN and infinity never reach the disk, and the error gives the path of the first one."""
    with pytest.raises(StoreError, match=place):
        encode(value, "rollouts")


def test_huge_finite_numbers_are_no_infinity() -> None:
    """A row whose sum overflows is still a row of finite numbers."""
    assert decode(encode([1.7e308, 1.7e308], "record")) == [1.7e308, 1.7e308]


@pytest.mark.parametrize(
    "value", [{1, 2}, b"x", {"__array__": 1}, {2: 3}, 2**70, np.array(["a"]), np.array([1j])]
)
def test_what_is_not_json_is_refused(value: object) -> None:
    """What could not be read back as it was raises at once, in one line that names the record."""
    with pytest.raises(StoreError, match="record") as caught:
        encode(value, "record")

    assert "\n" not in str(caught.value)


RECORD = {"reward": [0.0, 1.0, 0.25], "tokens": list(range(20))}


def test_every_cut_and_every_addition_is_noticed() -> None:
    """No shorter file, no longer one and none of zeros reads back as a record."""
    data = encode(RECORD, "record")
    cut = [data[:n] for n in range(len(data))]

    for damaged in [*cut, data + b"\0", data + data, b"\0" * len(data)]:
        with pytest.raises(CorruptRecord):
            decode(damaged)


def test_no_flipped_bit_gives_another_record() -> None:
    """Whichever bit flips, it is noticed; two bits of the frame's header carry nothing."""
    data = encode(RECORD, "record")
    unnoticed = []
    for i in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[i // 8] ^= 1 << i % 8
        with contextlib.suppress(CorruptRecord):
            unnoticed.append(decode(bytes(damaged)))

    assert len(unnoticed) <= 2
    assert all(value == RECORD for value in unnoticed)


@pytest.mark.parametrize("text", [b"", b"{", b'{"__array__": "AAAA"}', b'{"__array__": 1}'])
def test_a_whole_frame_of_something_else_is_corrupt(text: bytes) -> None:
    """The checksum says that the bytes are those written; that they are a record is checked too."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(text)

    with pytest.raises(CorruptRecord):
        decode(frame)
