"""IP addresses: their texts as MariaDB prints them."""

import socket

import pytest

from agent.sources.mysql.decode.addresses import inet4, inet6


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1:0:2:3:4:5:6:7", "1::2:3:4:5:6:7"),
        ("0:1:2:3:4:5:6:7", "::1:2:3:4:5:6:7"),
        ("1:2:3:4:5:6:7:0", "1:2:3:4:5:6:7::"),
        ("1:0:2:0:3:0:4:0", "1::2:0:3:0:4:0"),
        ("1:0:2:3:0:0:4:5", "1:0:2:3::4:5"),
        ("1:2:3:4:5:6:70:8", "1:2:3:4:5:6:70:8"),
        ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
    ],
)
def test_the_first_of_the_longest_rows_of_zeros_is_left_out(text: str, printed: str) -> None:
    assert inet6(socket.inet_pton(socket.AF_INET6, text)) == printed


def test_bytes_that_are_no_address() -> None:
    assert inet4(b"\1\2\3\0") == "1.2.3.0"
    for convert in (inet4, inet6):
        with pytest.raises(ValueError, match="length"):
            convert(b"\1\2")
