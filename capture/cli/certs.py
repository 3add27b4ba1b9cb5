"""``weir certs …``: the cluster's own certificate authority and the certificates of its nodes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capture.cli.options import Json
from capture.terminal import console

if TYPE_CHECKING:
    from capture.security.certificates import NodeCertificate

certs_app = typer.Typer(no_args_is_help=True, help="The cluster's certificate authority and its nodes' certificates.")


def _place(value: str) -> str:
    if not value:
        raise typer.BadParameter("is empty; give a directory, or leave it out")
    return value


Directory = Annotated[
    str, typer.Option("--dir", metavar="PATH", callback=_place, help="Where ca.pem, ca.key and nodes' files are.")
]
Node = Annotated[str, typer.Argument(help="The node's name: a to z, digits and hyphens. It stays when keys change.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is good.")]
_DIRECTORY = "weir-certs"
_DAYS = 365


@certs_app.command("init")
def init(
    dir: Directory = _DIRECTORY,
    cluster_id: Annotated[str, typer.Option(help="Named in the authority's certificate.")] = "default",
    json: Json = False,
) -> None:
    """Make a certificate authority: once for a cluster. Keep ca.key away from the nodes."""
    from capture.security.certificate_files import CertificateFiles

    certificate, key = CertificateFiles(Path(dir)).init(cluster_id)
    if json:
        return console.print_json({"certificate": str(certificate), "key": str(key)})
    return console.print_line(f"{certificate} is for every node, {key} for nobody but who issues certificates")


@certs_app.command("issue")
def issue(
    node: Node,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address by which the node's API is called; may be repeated.")
    ] = None,
    dir: Directory = _DIRECTORY,
    days: Days = _DAYS,
    json: Json = False,
) -> None:
    """Make a node's key and certificate."""
    from capture.security.certificate_files import CertificateFiles

    path, made = CertificateFiles(Path(dir)).issue(node, host or ["localhost", "127.0.0.1", "::1"], days=days)
    _show(path, made, json=json)


@certs_app.command("renew")
def renew(node: Node, dir: Directory = _DIRECTORY, days: Days = _DAYS, json: Json = False) -> None:
    """Make a new key and certificate for the same names; a running server takes them over within seconds."""
    from capture.security.certificate_files import CertificateFiles

    path, made = CertificateFiles(Path(dir)).renew(node, days=days)
    _show(path, made, json=json)


def _show(path: Path, made: "NodeCertificate", *, json: bool) -> None:
    ends = datetime.fromtimestamp(made.ends_at, UTC).date().isoformat()
    key = path.with_suffix(".key")
    if json:
        console.print_json({"certificate": str(path), "key": str(key), "node": made.node, "ends": ends})
    else:
        console.print_line(f"{path} and {key} are node {made.node}'s until {ends}")
