"""aioetcd3's messages, rebuilt: they leave the default descriptor pool alone, and speak etcd's newer requests."""

import pytest
from google.protobuf import descriptor_pool

from reactor.errors import CompactedError, StoreError, StoreUnreachableError
from reactor.store.etcd import faults
from reactor.store.etcd.connection import normalize
from reactor.store.etcd.stubs import PROGRESS_REQUEST, rpc


def test_messages_survive_the_wire() -> None:
    put = rpc.PutRequest(key=b"k", value=b"v", lease=7)
    request = rpc.TxnRequest(success=[rpc.RequestOp(request_put=put)])
    assert rpc.TxnRequest.FromString(request.SerializeToString()) == request


def test_the_default_pool_stays_free_for_others() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("rpc.proto")


def test_a_progress_request_is_sent_as_etcd_reads_it() -> None:
    assert PROGRESS_REQUEST.SerializeToString() == b"\x1a\x00"


@pytest.mark.parametrize(
    ("endpoint", "is_tls", "expected"),
    [
        ("127.0.0.1:2379", False, "http://127.0.0.1:2379"),
        ("etcd.example", True, "https://etcd.example:2379"),
        ("https://[::1]:1", False, "https://[::1]:1"),
    ],
)
def test_endpoints_are_written_in_one_way(endpoint: str, is_tls: bool, expected: str) -> None:
    assert normalize(endpoint, is_tls=is_tls) == expected


@pytest.mark.parametrize("endpoint", ["ftp://h:1", "http://:1", "http://h:x", ""])
def test_a_malformed_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(StoreError, match="not an etcd endpoint"):
        normalize(endpoint, is_tls=False)


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreError) as caught:
        normalize("http://root:secret@h:1", is_tls=False)
    assert "secret" not in str(caught.value)


def test_texts_of_etcd_become_errors() -> None:
    compacted = faults.from_text("etcdserver: mvcc: required revision has been compacted", endpoint="e")
    assert isinstance(compacted, CompactedError)
    assert faults.from_text("etcdserver: something new", endpoint="e") is None
    assert "\n" not in str(faults.unreachable("e", "many\nlines"))
    assert isinstance(faults.unreachable("e", ""), StoreUnreachableError)
