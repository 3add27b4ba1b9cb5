"""Log sequence numbers: PostgreSQL writes them as two hexadecimal halves, Weir uses them as a Ts."""

from reactor.ids import Ts


def parse_lsn(text: str) -> Ts:
    high, _, low = text.partition("/")
    return Ts((int(high, 16) << 32) | int(low, 16))


def format_lsn(ts: Ts) -> str:
    return f"{ts >> 32:X}/{ts & 0xFFFFFFFF:X}"
