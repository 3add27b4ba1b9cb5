"""Certificates: a cluster's own authority, and the certificates that identify its nodes to each other.

A node's certificate contains the node's name as a host name, besides the names of its API. A node is pinned by its name
and the fingerprint of its public key, both of which the metadata store has of each member: a certificate of the right
authority alone is not sufficient.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from capture.errors import ConfigError

CA_DAYS, NODE_DAYS = 3650, 365
#: tolerance for differing clocks of a cluster's machines
_CLOCKS_S = 300
_NODE = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """``key``: the SHA-256 of its public key."""

    node: str
    key: str
    ends_at: float


@dataclass(frozen=True, slots=True)
class Issued:
    """In PEM form."""

    certificate: bytes
    key: bytes


def parse_node(name: str) -> str:
    """:raises ConfigError: it is not a valid node name."""
    if not _NODE.match(name):
        raise ConfigError(f"{name!r} is no name of a node; use letters a to z, digits and hyphens, at most 63")
    return name


def new_authority(cluster: str, *, days: int = CA_DAYS) -> Issued:
    """Create a self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Weir cluster {cluster}")
    usage = _usage(signs=True)
    built = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _issued(built.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, node: str, hosts: Sequence[str], *, days: int = NODE_DAYS) -> Issued:
    """Create a certificate for a node with a new key. ``hosts``: names and addresses of its API.

    :raises ConfigError: the authority's files are invalid, or a name is.
    """
    ca, ca_key = _loaded(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(parse_node(node)), *map(_host, hosts)]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    built = (
        _builder(_name(node), ca.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    return _issued(built.sign(ca_key, hashes.SHA256()), key)


def renewed(authority: Issued, certificate: bytes, *, days: int = NODE_DAYS) -> Issued:
    """Create a certificate for the same node and names, with a new key.

    :raises ConfigError: the file is not a node's certificate.
    """
    old = _certificate(certificate)
    node = node_certificate(old).node
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(name.value) for name in names]
    return issue(authority, node, [host for host in hosts if host != node], days=days)


def read(data: bytes) -> NodeCertificate:
    """Read the first certificate of a PEM file, or a DER certificate as TLS provides it.

    :raises ConfigError: it is not a node's certificate.
    """
    try:
        is_pem = data.lstrip().startswith(b"-----BEGIN")
        return node_certificate(_certificate(data) if is_pem else x509.load_der_x509_certificate(data))
    except ValueError:
        raise ConfigError("a certificate cannot be read; make one with `weir certs issue`") from None


def node_certificate(certificate: x509.Certificate) -> NodeCertificate:
    """:raises ConfigError: it names no node."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    node = str(names[0].value) if names else ""
    if not _NODE.match(node):
        raise ConfigError("a certificate names no node; make one with `weir certs issue`")
    public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return NodeCertificate(node, hashlib.sha256(public).hexdigest(), certificate.not_valid_after_utc.timestamp())


def _loaded(authority: Issued) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _certificate(authority.certificate)
    try:
        key = load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError):
        raise ConfigError("the authority's key cannot be read; take ca.key of `weir certs init`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError("the authority's key is not its certificate's; take both files of one `weir certs init`")
    return certificate, key


def _certificate(data: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise ConfigError("a certificate cannot be read; make one with `weir certs issue`") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(seconds=_CLOCKS_S))
    return builder.not_valid_after(now + timedelta(days=days))


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(certificate.public_bytes(Encoding.PEM), secret)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no host name; write its ASCII form") from None


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
