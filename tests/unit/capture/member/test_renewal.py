"""A changed certificate is used and registered, with the key before it; one that cannot be used changes nothing."""

from pathlib import Path

from structlog.testing import capture_logs

from capture.member import joining
from capture.member.renewal import Renewal
from capture.messaging.admission import Admission
from capture.messaging.tls import NodeTls, Tls
from capture.security.certificate_files import CertificateFiles
from capture.security.key_file import add_key, make_file, read_keys
from capture.security.key_mark import KeyMark
from capture.security.secrets import Keeper, fingerprint_of
from reactor.ids import CaptureId
from reactor.keys import CaptureKey
from reactor.records.capture import CaptureInfo
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Target

KEY = str(CaptureKey("c", CaptureId("a")))


async def member(directory: Path) -> tuple[MemoryEtcd, NodeTls, Renewal, CertificateFiles]:
    files = CertificateFiles(directory)
    files.init("c")
    files.issue("node-1", ["127.0.0.1"], days=365)
    tls = NodeTls(Tls(directory / "ca.pem", *files.files("node-1")))
    etcd = MemoryEtcd()
    keys = (tls.certificate.key,)
    info = CaptureInfo(
        id=CaptureId("a"), address="h:1", peer_address="h:2", version="x", cluster_id="c", started_at=0.0
    ).with_(node="node-1", peer_keys=keys)
    lease = etcd.grant(10)
    revision = await joining.join(MemoryClient(etcd), "c", info, lease=lease)
    registered = Compare(KEY, Target.CREATE_REVISION, revision)
    return etcd, tls, Renewal(tls, MemoryClient(etcd), info, lease=lease, registered=registered), files


def stored(etcd: MemoryEtcd) -> CaptureInfo:
    item = etcd.get(KEY)
    assert item is not None
    assert item.lease
    return CaptureInfo.decode(item.value, key=KEY)


async def test_a_renewed_certificate_is_registered_beside_the_key_before_it(tmp_path: Path) -> None:
    etcd, tls, renewal, files = await member(tmp_path)
    keys = [tls.certificate.key]
    for _ in range(3):
        await renewal.look()
        files.renew("node-1", days=365)
        await renewal.look()
        keys.insert(0, tls.certificate.key)
        assert stored(etcd).peer_keys == tuple(keys[:2])


async def test_files_that_do_not_fit_are_said_once_and_change_nothing(tmp_path: Path) -> None:
    etcd, tls, renewal, files = await member(tmp_path)
    before = stored(etcd), tls.certificate
    files.files("node-1")[1].write_text("half a key")
    with capture_logs() as logs:
        await renewal.look()
        await renewal.look()
    assert [line["event"] for line in logs] == ["certificate not renewed"]
    assert (stored(etcd), tls.certificate) == before


async def test_a_certificate_that_ends_soon_is_warned_of(tmp_path: Path) -> None:
    _, _, renewal, files = await member(tmp_path)
    files.renew("node-1", days=7)
    with capture_logs() as logs:
        await renewal.look()
        await renewal.look()
    assert [line["event"] for line in logs].count("certificate ends soon") == 1


async def test_a_capture_that_has_left_registers_nothing(tmp_path: Path) -> None:
    etcd, _, renewal, files = await member(tmp_path)
    await MemoryClient(etcd).delete(KEY)
    files.renew("node-1", days=365)
    await renewal.look()
    assert etcd.get(KEY) is None


async def test_changed_secret_keys_are_registered_and_proved_to_peers(tmp_path: Path) -> None:
    etcd, _, _, _ = await member(tmp_path)
    file = tmp_path / "secret.key"
    make_file(file)
    keeper, admission = Keeper.from_file(file), Admission()
    old, item = keeper.fingerprint, etcd.get(KEY)
    assert item is not None
    info, mark = stored(etcd), KeyMark(old)
    renewal = Renewal(
        None,
        MemoryClient(etcd),
        info,
        lease=item.lease,
        registered=Compare(KEY, Target.CREATE_REVISION, item.create_revision),
    )
    renewal.watch_keys(keeper, lambda: mark, admission)
    new = fingerprint_of(add_key(file))
    await renewal.look()
    assert stored(etcd).secret_keys == keeper.fingerprints == (old, new)
    assert keeper.fingerprint == old, "the mark says what seals"
    mark = KeyMark(old, new)
    await renewal.look()
    assert (keeper.fingerprint, admission.key is not None) == (new, True)
    file.write_bytes(read_keys(file)[-1])
    with capture_logs() as logs:
        await renewal.look()
        await renewal.look()
    assert [line["cause"] for line in logs if line["log_level"] == "warning"] == [
        f"the secret key file {file} lacks the cluster's key {old}; put it back"
    ]
    assert keeper.fingerprints == (old, new), "it is still needed"
    mark = KeyMark(new)
    await renewal.look()
    assert stored(etcd).secret_keys == (new,)
