"""``weir store …``: takes a stopped cluster's state out of a store, and writes it to another one."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from capture.cli.options import Json
from capture.errors import ConfigError
from capture.terminal import console

if TYPE_CHECKING:
    from reactor.store.image import Image
    from reactor.store.transfer import Place

store_app = typer.Typer(no_args_is_help=True, help="Move a stopped cluster's state between stores; back it up.")

_STORE = "As --store of `weir server` takes it; `embedded`: the etcd below --data-dir."
From = Annotated[str, typer.Argument(metavar="FROM", help=_STORE)]
To = Annotated[str, typer.Argument(metavar="TO", help=_STORE)]
ClusterId = Annotated[str, typer.Option(help="The cluster's id.")]
Config = Annotated[Path | None, typer.Option(help="A server's settings: user, password and TLS files of etcd.")]
DataDir = Annotated[str | None, typer.Option(metavar="PATH", help="Data directory of `embedded` and `sqlite`.")]


@store_app.command("export")
def export(
    source: From,
    file: Annotated[Path, typer.Argument(help="The file that is written; readable by you only.")],
    cluster_id: ClusterId = "default",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write the state of a stopped cluster to a file. Secrets in it are as they are stored."""
    from reactor.store import transfer

    async def work() -> "tuple[Image, str]":
        async with _place(source, cluster_id, config, data_dir, must_exist=True) as place:
            return await transfer.export(place)

    _refuse_existing(file)
    image, halted = _run(work)
    _write(file, image.encode())
    if json:
        return console.print_json({**_counted(image), "file": str(file), "halted": halted})
    return console.print_line(
        f"{file} has cluster {cluster_id} with {len(image.items)} keys{f'; it is halted: {halted}' if halted else ''}"
    )


@store_app.command("import")
def load(
    file: Annotated[Path, typer.Argument(help="A file of `weir store export`.")],
    target: To,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write an exported cluster to a store that does not have it. It must not have run since it was exported."""
    from reactor.store import transfer
    from reactor.store.image import Image

    if file.is_char_device():
        raise ConfigError(f"{file} is a device; give a file of `weir store export`")
    try:
        image = Image.decode(file.read_text(), name=str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file} ({error}); give a file of `weir store export`") from None

    async def work() -> str:
        async with _place(target, image.cluster, config, data_dir) as place:
            await transfer.load(image, place)
            return place.name

    name = _run(work)
    if json:
        return console.print_json({**_counted(image), "store": name})
    return console.print_line(_there(image, name))


@store_app.command("migrate")
def migrate(
    source: From,
    target: To,
    cluster_id: ClusterId = "default",
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Move a stopped cluster from one store to another; no capture can start with the first one any more.

    If it is interrupted, run it again.
    """
    from reactor.store import transfer

    async def work() -> "tuple[Image, str]":
        async with (
            _place(source, cluster_id, config, data_dir, must_exist=True) as here,
            _place(target, cluster_id, config, data_dir) as there,
        ):
            return await transfer.move(here, there), there.name

    image, name = _run(work)
    if json:
        return console.print_json({**_counted(image), "store": name})
    return console.print_line(_there(image, name))


@store_app.command("remove")
def remove(
    source: Annotated[str, typer.Argument(metavar="STORE", help=_STORE)],
    cluster_id: Annotated[str, typer.Option(help="The cluster's id; there is no default.")],
    usable: Annotated[bool, typer.Option("--usable", help="Also if captures could be started with it.")] = False,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove the state of a stopped cluster: one that was moved away, or the rest of an interrupted import."""
    from reactor.store import transfer

    async def work() -> int:
        async with _place(source, cluster_id, config, data_dir, must_exist=True) as place:
            return await transfer.remove(place, usable=usable)

    count = _run(work)
    if json:
        return console.print_json({"cluster": cluster_id, "keys": count})
    return console.print_line(f"{count} keys of cluster {cluster_id} are removed")


def _run(work: Any) -> Any:
    from reactor import loop

    return loop.run(work)


@asynccontextmanager
async def _place(
    store: str, cluster: str, config: Path | None, data_dir: str | None, *, must_exist: bool = False
) -> "AsyncIterator[Place]":
    """Connect; what WEIR_* variables and ``config`` say of a store does not count, what they say of its user does."""
    from capture.config import load_server_settings
    from capture.directory import locked
    from capture.security.exposure import exposed_settings
    from capture.security.own_token import LOCK_FILE
    from capture.store import connect_store, store_name, with_etcd
    from reactor.store.transfer import Place

    named = {"store": "" if store == "embedded" else store, "etcd": (), "cluster_id": cluster, "data_dir": data_dir}
    settings = load_server_settings(config, **named)
    for problem in exposed_settings(config):
        console.print_warning(problem)
    name = store_name(settings)
    file = Path(unquote(urlsplit(settings.sql_store).path)) if settings.sql_store.startswith("sqlite") else None
    if must_exist and file is not None and not file.exists():
        raise ConfigError(f"there is no file {file}; correct the store's name")
    with contextlib.ExitStack() as stack:
        if store == "embedded":
            if must_exist and not (settings.data_dir / "etcd").is_dir():
                raise ConfigError(f"{settings.data_dir} has no embedded etcd; give the --data-dir of a capture")
            stack.enter_context(locked(settings.data_dir / LOCK_FILE, what="a capture"))
        async with with_etcd(settings) as connected:
            client = await connect_store(connected)
            try:
                yield Place(client, cluster, name)
            finally:
                await client.close()


def _counted(image: "Image") -> dict[str, object]:
    return {"cluster": image.cluster, "keys": len(image.items), "revision": image.revision}


def _there(image: "Image", name: str) -> str:
    return f"cluster {image.cluster} with {len(image.items)} keys is in {name}; start its captures with that store"


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file} exists already; choose another file")


def _write(file: Path, text: str) -> None:
    """Readable by its owner only from its first byte on, and under its name when it is whole."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.absolute().parent) as part:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
            os.link(part.name, file)
        descriptor = os.open(file.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot write {file} ({error.strerror}); choose another file") from None
