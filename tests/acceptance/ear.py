"""An ear at the bridge of a network: what is sent first on each TCP connection, by the address that it leads to.

Run in the bridge's namespace: ``python -m tests.acceptance.ear`` writes ``hears``, and once its standard input is
closed one JSON object: address → the bytes in hexadecimal, of the connection with the most of them.
"""

import json
import select
import socket
import sys

_ALL_PROTOCOLS = 3
_IPV4 = b"\x08\x00"
#: segments that are kept of each direction of a connection
_SEGMENTS_MAX = 8

Flows = dict[tuple[bytes, bytes], dict[int, bytes]]


def note(frame: bytes, flows: Flows) -> None:
    """``frame``: of Ethernet; only those with IPv4 and TCP are noted, by both ends and their place in the stream."""
    if len(frame) < 54 or frame[12:14] != _IPV4 or frame[23] != socket.IPPROTO_TCP:
        return
    packet = frame[14 : 14 + int.from_bytes(frame[16:18], "big")]
    segment = packet[(packet[0] & 15) * 4 :]
    data = segment[(segment[12] >> 4) * 4 :]
    flow = flows.setdefault((packet[12:16] + segment[:2], packet[16:20] + segment[2:4]), {})
    if data and len(flow) < _SEGMENTS_MAX:
        flow.setdefault(int.from_bytes(segment[4:8], "big"), data)


def heard(flows: Flows) -> dict[str, str]:
    found: dict[str, str] = {}
    for (_, end), flow in flows.items():
        address = f"{socket.inet_ntoa(end[:4])}:{int.from_bytes(end[4:], 'big')}"
        found[address] = max(found.get(address, ""), b"".join(flow[at] for at in sorted(flow)).hex(), key=len)
    return found


def main() -> None:
    flows: Flows = {}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as wire:
        sys.stdout.write("hears\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([wire, sys.stdin], [], [])
            if sys.stdin in ready:
                break
            note(wire.recv(1 << 17), flows)
    sys.stdout.write(json.dumps(heard(flows)))


if __name__ == "__main__":
    main()
