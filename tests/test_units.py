import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.units import BitRate, Duration, Size


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BitRate, "400Gbps", 400 * 10**9),
        (BitRate, "1.6Tbps", 1_600 * 10**9),
        (Duration, "600ns", 600_000),
        (Duration, "0.5us", 500_000),
        (Size, "64KB", 64_000),
        (Size, "64KiB", 65_536),
        (Size, "1.5MB", 1_500_000),
        (Duration, 0, 0),
    ],
)
def test_reads(kind, text, value):
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    "text", ["400", "400 KB", "-3Gbps", "Gbps", "", None, 400, True, "1e3Gbps", "0.0000000001bps", "9" * 40 + "Gbps"]
)
def test_refuses_what_is_no_rate(text):
    with pytest.raises(ValueError, match="rate"):
        BitRate.parse(text)


@given(st.sampled_from([BitRate, Duration, Size]), st.integers(0, 2**60))
def test_text_is_read_back_as_the_same_value(kind, value):
    assert kind.parse(str(kind(value))) == value
