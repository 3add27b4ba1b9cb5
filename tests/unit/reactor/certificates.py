"""Certificates of every kind, as files: authorities, ones between, servers', and what is wrong with some."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_HOUR = datetime.timedelta(hours=1)
_PEM = serialization.Encoding.PEM
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Identity:
    """A key pair and its certificate, in memory and as files."""

    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    directory: Path

    @property
    def certificate_file(self) -> str:
        return str(self.directory / f"{self.name}.pem")

    @property
    def key_file(self) -> str:
        return str(self.directory / f"{self.name}.key")

    def write(self, *others: "Identity") -> None:
        """``others``: whose certificates are in the same file, as those between a server's and its authority."""
        plain = serialization.NoEncryption()
        key = self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain)
        Path(self.key_file).write_bytes(key)
        Path(self.key_file).chmod(0o600)
        chain = (one.certificate.public_bytes(_PEM) for one in (self, *others))
        Path(self.certificate_file).write_bytes(b"".join(chain))


def identity(
    directory: Path,
    name: str,
    *,
    issuer: Identity | None = None,
    signs: bool | None = None,
    hosts: Sequence[str] = ("127.0.0.1",),
    begins: datetime.timedelta = -_HOUR,
) -> Identity:
    """``signs``: it may sign others; those without an issuer do. It is good for two hours."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime.datetime.now(datetime.UTC) + begins
    names = [x509.IPAddress(ip_address(host)) if host[:1].isdigit() else x509.DNSName(host) for host in hosts]
    is_authority = issuer is None if signs is None else signs
    builder = (
        x509.CertificateBuilder(subject_name=subject, public_key=key.public_key())
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + 2 * _HOUR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Python 3.13 trusts no chain without these
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    signing = issuer.key if issuer else key
    if issuer:
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
        builder = builder.add_extension(authority_key, critical=False)
    if is_authority:
        builder = builder.add_extension(_SIGNS, critical=True)
    made = Identity(name, key, builder.sign(signing, hashes.SHA256()), directory)
    made.write()
    return made


#: what is wrong with a server's certificate → what whoever does not trust it reads; nothing: it is trusted
SERVERS = {
    "its authority's": "",
    "of an authority between, which it sends": "",
    "of an authority between, which it does not send": r"unable to .*name its authority with",
    "of another authority": r"unable to .*name its authority with",
    "self-signed": r"self.signed certificate.*name its authority with",
    "with another name": r"mismatch.*connect to a name or address that it has",
    "ended": r"has expired.*renew it there",
    "not good yet": r"not yet valid.*correct this machine's clock",
}


def authority(directory: Path) -> Identity:
    """What clients trust."""
    return identity(directory, "root")


def server(root: Identity, case: str) -> Identity:
    """Return a server's certificate of one of ``SERVERS``; its files are the same for each."""
    directory = root.directory
    between = identity(directory, "between", issuer=root, signs=True)
    if case.startswith("of an authority between"):
        made = identity(directory, "server", issuer=between)
        if "not" not in case:
            made.write(between)
        return made
    if case == "of another authority":
        return identity(directory, "server", issuer=identity(directory, "stranger"))
    if case == "self-signed":
        return identity(directory, "server", signs=False)
    if case == "with another name":
        return identity(directory, "server", issuer=root, hosts=("db.example.org",))
    begins = {"ended": -4 * _HOUR, "not good yet": _HOUR}
    return identity(directory, "server", issuer=root, begins=begins.get(case, -_HOUR))
