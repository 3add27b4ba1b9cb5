"""SQL client: the store port's calls on a database.

It has two lanes, so that a read does not wait until somebody's commit is on the disk. It answers only after the leases
that are over have ended.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import anyio
import structlog

from reactor.errors import StoreError, StoreFullError, StoreUnreachableError
from reactor.store.port import Compare, Delete, KeyValue, Operation, Put, Snapshot, TxnResult, WatchBatch
from reactor.store.sql import logic
from reactor.store.sql.database import Announcing, Database, Statements
from reactor.store.sql.group import Group
from reactor.store.sql.lane import Lane
from reactor.store.sql.logic import Change, Head, Seen
from reactor.store.sql.pulse import Pulse
from reactor.store.sql.sqlite import SqliteDatabase

T = TypeVar("T")

_RETRY_S = 0.05
_WATCH_RETRY_S = 0.1
#: how long a watch waits for a commit before it looks whether a lease is over
_NEWS_S = 0.25

_log = structlog.get_logger()


async def connect(url: str, *, timeout_s: float = 5.0) -> "SqlClient":
    """Return a client that has had one answer, so that a wrong URL is reported at once.

    ``url``: ``sqlite:///path/of/the/file``, an absolute path, ``postgresql://…`` as libpq has it, or ``mysql://…`` and
    ``mariadb://…`` (``reactor.store.sql.mysql.target``). Every call takes at most ``timeout_s``.

    :raises StoreError: the URL is malformed, or the database cannot be used.
    """
    client = _client(url, timeout_s)
    try:
        await client.time_to_live(0)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await client.close()
        raise
    return client


class SqlClient:
    """Created by ``connect``. ``name``: of the store, in errors. ``open_news``: a connection of its own that waits for
    commits, if the database tells of them."""

    def __init__(
        self,
        open_database: Callable[[], Database],
        *,
        name: str,
        timeout_s: float,
        open_news: Callable[[], Announcing] | None = None,
    ) -> None:
        self._writes = Lane(open_database, self._greet, name=name)
        self._reads = Lane(open_database, self._greet, name=name)
        self._news = Lane(open_news, self._greet, name=name) if open_news else None
        self._name = name
        self._timeout_s = timeout_s
        self._seen = Seen()
        self._group = Group(self._writes, lambda: self._seen)
        self._is_closed = False
        self._pulse = Pulse(self._look, is_waiting=open_news is not None)

    async def get(self, key: str) -> KeyValue | None:
        return await self._read(lambda statements: logic.get(statements, key))

    async def get_prefix(self, prefix: str) -> Snapshot:
        return await self._read(lambda statements: logic.get_prefix(statements, prefix))

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        return (await self.txn([], [Put(key, value, lease)])).revision

    async def delete(self, key: str) -> bool:
        _, has_changed = await self._txn([], [Delete(key)])
        return has_changed

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        result, _ = await self._txn(compares, operations)
        return result

    async def grant(self, ttl_s: int) -> int:
        return await self._repeatable(lambda change, seen: change.grant(ttl_s, seen))

    async def revoke(self, lease: int) -> None:
        await self._repeatable(lambda change, seen: change.revoke(lease, seen))

    async def keep_alive(self, lease: int) -> int:
        return await self._repeatable(lambda change, seen: change.keep_alive(lease, seen))

    async def time_to_live(self, lease: int) -> int | None:
        return await self._read(lambda statements: logic.time_to_live(statements, lease))

    async def compact(self, revision: int) -> None:
        await self._write(lambda change, seen: change.compact(revision, seen), self._timeout_s)

    async def pass_revision(self, revision: int, *, key: str) -> None:
        await self._write(lambda change, seen: change.pass_revision(revision, seen), self._timeout_s)

    @asynccontextmanager
    async def watch_prefix(self, prefix: str, *, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        async with aclosing(self._batches(prefix, start_revision)) as batches:
            yield batches

    async def close(self) -> None:
        self._is_closed = True
        await self._writes.close()
        await self._reads.close()
        if self._news is not None:
            await self._news.close()

    async def _txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> tuple[TxnResult, bool]:
        logic.check_request(compares, operations)
        result, has_changed, head = await self._group.txn(compares, operations, self._timeout_s)
        self._note(head)
        return result, has_changed

    async def _batches(self, prefix: str, next_revision: int) -> AsyncGenerator[WatchBatch, None]:
        while True:
            try:
                page = await self._page(prefix, next_revision)
            except StoreUnreachableError as error:
                if self._is_closed:
                    raise
                _log.info("watch interrupted", prefix=prefix, next_revision=next_revision, error=str(error))
                await anyio.sleep(_WATCH_RETRY_S)
                continue
            next_revision = page.next_revision
            if page.events:
                yield WatchBatch(page.events, page.events[-1].mod_revision)
            if page.is_last:
                await self._wait(next_revision)

    async def _page(self, prefix: str, next_revision: int) -> logic.Page:
        return await self._read(lambda statements: logic.page(statements, prefix, next_revision))

    async def _wait(self, next_revision: int) -> None:
        try:
            await self._pulse.wait(next_revision)
        except StoreUnreachableError:
            return  # reading the next page says so again, if it is still so

    async def _look(self) -> int:
        """Also end leases that nobody else ends: an owner's death is an event like any other."""
        if self._news is not None:
            revision = await self._news.run(
                lambda database, gone: database.wait_changed(gone, _NEWS_S), self._timeout_s
            )
            if revision is not None:
                return revision
        head = await self._read(lambda statements: (logic.head(statements),) * 2)
        return head.revision

    async def _read(self, ask: Callable[[Statements], tuple[T, Head]]) -> T:
        def work(database: Database, _: Callable[[], bool]) -> tuple[T, Head]:
            with database.reading() as statements:
                return ask(statements)

        async def attempt(deadline: float) -> T:
            while True:
                seen = self._seen
                answer, head = await self._reads.run(work, deadline - anyio.current_time())
                logic.check_not_behind(head, seen)
                self._note(head)
                if not head.is_due:
                    return answer
                await self._write(lambda change, seen: change.settle(seen), deadline - anyio.current_time())

        return await self._repeated(attempt)

    async def _repeatable(self, ask: Callable[[Change, Seen], T]) -> T:
        return await self._repeated(lambda deadline: self._write(ask, deadline - anyio.current_time()))

    async def _repeated(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        """Return the result of the first attempt that has one, within the client's time. The last attempt may have too
        little of it to see more than that, so the first error is raised."""
        deadline = anyio.current_time() + self._timeout_s
        first: StoreUnreachableError | None = None
        while True:
            try:
                return await attempt(deadline)
            except StoreFullError:
                raise
            except StoreUnreachableError as error:
                first = first or error
                if self._is_closed or anyio.current_time() + _RETRY_S >= deadline:
                    raise first from None
            await anyio.sleep(_RETRY_S)

    async def _write(self, ask: Callable[[Change, Seen], T], left_s: float) -> T:
        seen = self._seen

        def work(database: Database, is_given_up: Callable[[], bool]) -> tuple[T | StoreError, Head]:
            with database.writing(is_given_up) as statements:
                change = Change(statements)
                try:
                    answer: T | StoreError = ask(change, seen)
                except StoreError as error:
                    answer = error  # raised after the commit: a lease that was said to be over stays over
                return answer, change.finish()

        answer, head = await self._writes.run(work, left_s)
        self._note(head)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _note(self, head: Head) -> None:
        if head.revision > self._seen.revision:
            self._seen = head.seen
        self._pulse.note(head.revision)

    def _greet(self, database: Database) -> None:
        seen = self._seen
        with database.reading() as statements:
            logic.check_same(statements, seen)


def _client(url: str, timeout_s: float) -> SqlClient:
    """:raises StoreError: the URL is malformed, or what it needs is not installed."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            path = Path(unquote(parts.path))
            if parts.netloc or not parts.path.strip("/"):
                raise StoreError("a store in SQLite is named sqlite:///path/of/the/file; give its whole path")
            return SqlClient(
                lambda: SqliteDatabase(path, busy_s=timeout_s), name=f"SQLite file {path}", timeout_s=timeout_s
            )
        case "postgresql" | "postgres":
            try:
                from reactor.store.sql import postgres
            except ImportError:
                raise StoreError(
                    "a store in PostgreSQL needs psycopg; pip install 'weir-cdc[postgres-store]'"
                ) from None

            def opened() -> postgres.PostgresDatabase:
                return postgres.PostgresDatabase(url, timeout_s=timeout_s)

            return SqlClient(opened, name=postgres.name_of(url), timeout_s=timeout_s, open_news=opened)
        case "mysql" | "mariadb":
            from reactor.store.sql import mysql

            target = mysql.parse(url)
            return SqlClient(
                lambda: mysql.MysqlDatabase(target, timeout_s=timeout_s), name=target.name, timeout_s=timeout_s
            )
        case _:
            raise StoreError(
                f"no store has the scheme {parts.scheme!r}; "
                "give sqlite:///path, postgresql://…, mysql://…, mariadb://…, or URLs of etcd"
            )
