"""Transactions of an application in PostgreSQL, which commit its effects and a checkpoint atomically.

A transaction first locks the checkpoint's row, so that no other instance seals or moves it before the end: a new owner
waits for the lock and then sees what was committed. The deadline is enforced here, by cutting the connection, and by
the server's timeouts, which release the locks even if this process hangs or dies.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from evenflow.drivers.postgresql.driver import is_application_error, psycopg, translation
from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable, TransactionTimeout
from evenflow.stores import rules
from evenflow.stores.postgresql.codec import checkpoint_of, notes_text
from evenflow.stores.postgresql.functions import REFUSED
from evenflow.stores.postgresql.schema import placed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from evenflow.drivers.postgresql.driver import Connection, PostgreSQLOptions
    from evenflow.drivers.postgresql.pool import PooledConnection
    from evenflow.model import Checkpoint, Group

Rows: TypeAlias = "list[tuple[object, ...]]"

CANCEL_S = 1.0
TRANSACTION_TIMEOUT_SINCE = 170_000

# READ COMMITTED, whatever the database's default is: after waiting for a lock, the committed change must be visible.
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_LIMITS = b"""
SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true),
    set_config('lock_timeout', $1, true)"""
_LIMIT_OF_ALL = b"SELECT set_config('transaction_timeout', $1, true)"
_APPLICATION = b"SELECT set_config('evenflow_store.application', $1, true)"
_RECORD = """
SELECT partition, epoch, "offset", sequence, ordinal, notes, event_at, begun, fruitless, effects, changed_at, edition
FROM evenflow.checkpoints WHERE namespace = $1 AND hub = $2 AND consumer_group = $3 AND partition = $4 FOR UPDATE"""
_KEEP = """
UPDATE evenflow.checkpoints SET "offset" = $5, sequence = $6, ordinal = $7, notes = $8, event_at = $9, edition = $10,
    effects = true, changed_at = extract(epoch FROM clock_timestamp())
WHERE namespace = $1 AND hub = $2 AND consumer_group = $3 AND partition = $4"""

_COMMENTS = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/|;)*", re.DOTALL)
_ENDS = re.compile(
    r"(?:begin|start|commit|end|abort|prepare|rollback(?!(?:\s+(?:work|transaction))?\s+to\b))\b", re.IGNORECASE
)
_STAYS = re.compile(
    r"(?:set(?!\s+(?:local|constraints)\b)|reset|discard|listen|unlisten|deallocate|load)\b", re.IGNORECASE
)
_TEMPORARY = re.compile(
    r"create\s+(?:(?:global|local)\s+)?temp(?:orary)?\b(?!.*\bon\s+commit\s+drop\b)", re.IGNORECASE | re.DOTALL
)


def refusal(statement: str) -> str:
    """Why an application may not execute this; "" if it may. Checks the first words, since there is one statement."""
    text = statement[len(_COMMENTS.match(statement)[0]) :]  # type: ignore[index]
    if _ENDS.match(text):
        return "BEGIN, COMMIT and ROLLBACK are not allowed inside a transaction; it commits at the end of its block."
    if _STAYS.match(text) or _TEMPORARY.match(text):
        return (
            "Statements whose effect outlives the transaction are not allowed inside one (SET without LOCAL, LISTEN,"
            " temporary tables without ON COMMIT DROP), because the connection is reused."
        )
    return ""


class PostgreSQLTransaction:
    """The contract of Transaction. Statements use $1, $2 and so on for values; rows are tuples."""

    def __init__(self, address: PostgreSQLOptions, schema: str, limit_s: float) -> None:
        self._address = address
        self._schema = schema
        self._limit_s = limit_s
        self._ends_s = asyncio.get_running_loop().time() + limit_s
        self._line: PooledConnection | None = None
        self._turn = asyncio.Lock()
        self._over: EvenflowError | None = None
        """Why no more statements are accepted; None while it is open."""
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._is_committing = False
        """From then on, a lost connection leaves the outcome unknown."""

    @property
    def left_s(self) -> float:
        return self._ends_s - asyncio.get_running_loop().time()

    # --- called by the application
    async def execute(self, statement: str, values: Sequence[object] = ()) -> Rows:
        given = tuple(values)
        return await self._execute(statement, lambda connection: _run(connection, statement, given))

    async def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        given = [tuple(row) for row in rows]
        await self._execute(statement, lambda connection: _run_many(connection, statement, given))

    async def _execute(self, statement: str, work: Callable[[Connection], Awaitable[Rows]]) -> Rows:
        if why := refusal(statement):
            raise Misconfigured(why)
        return await self._do(work)

    async def _do(self, work: Callable[[Connection], Awaitable[Rows]]) -> Rows:
        async with self._turn:
            if self._over is not None:
                raise self._over
            assert self._line is not None
            try:
                return await self._line.do(work, self.left_s + CANCEL_S)
            except psycopg.Error as error:
                if self._is_late() and (error.sqlstate is not None or not self._is_committing):
                    raise self._timeout() from error
                if error.sqlstate == REFUSED:
                    table = error.diag.message_primary
                    raise Misconfigured(f"The table {table} is evenflow's own. Only reading is allowed.") from error
                if is_application_error(error):
                    raise
                self._over = StoreUnavailable("The transaction has ended because its connection was lost.")
                raise translation(error, self._address) from error

    # --- called by the store
    async def begin(
        self, line: PooledConnection, group: Group, checkpoint: Checkpoint, *, committed: int, start: int
    ) -> None:
        if self.left_s <= 0:
            raise self._timeout()
        self._line = line
        self._timer = asyncio.get_running_loop().call_later(self.left_s, self._end_in_time)
        key = (*structs.astuple(group), checkpoint.partition)
        record = placed(_RECORD, self._schema).encode()
        rows = await self._do(lambda connection: _begin(connection, self._milliseconds(), record, key))
        found = checkpoint_of(rows[0]) if rows else None
        rules.begin_transaction(found, checkpoint, committed=committed, start=start)

    async def commit(self, group: Group, checkpoint: Checkpoint) -> None:
        assert self._line is not None
        if self._over is None and self._line.status != psycopg.pq.TransactionStatus.INTRANS:
            self._over = Misconfigured(
                "A statement failed inside the transaction, so PostgreSQL rolls back all of it; nothing took effect."
                " Let the error leave the block, or put a SAVEPOINT before the statement."
            )
        keep = placed(_KEEP, self._schema).encode()
        position, notes = checkpoint.position, notes_text(checkpoint)
        values = (*structs.astuple(group), checkpoint.partition, position.offset, position.sequence)
        moved = (*values, checkpoint.ordinal, notes, checkpoint.event_at, checkpoint.edition)
        if self._is_late():
            raise self._timeout()
        self._stop_timer()
        self._is_committing = self._over is None
        await self._do(lambda connection: _end(connection, keep, moved))

    async def roll_back(self) -> None:
        """Rolls back in any state, if necessary by cutting the connection."""
        line = self._line
        if line is None:
            return
        idle = psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR
        if line.status in idle and not self._is_late():
            try:
                await line.do(lambda connection: connection.execute(b"ROLLBACK"), CANCEL_S)
            except (psycopg.Error, EvenflowError):
                line.cut()
        elif line.status != psycopg.pq.TransactionStatus.IDLE:
            line.cut()

    def close(self) -> None:
        self._stop_timer()
        if self._cancelling is not None and self._line is not None:
            self._line.cut()  # a late cancel must not hit the next transaction on this connection
        if self._over is None:
            self._over = Misconfigured("This transaction has ended. Execute statements inside its block.")

    def give_up(self) -> None:
        """Called when the store is closed."""
        self._over = StoreUnavailable("The transaction was rolled back because the store was closed.")
        if self._line is not None:
            self._line.cut()

    # --- the deadline
    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end_in_time(self) -> None:
        if self._over is None:
            self._over = self._timeout()
        self._cancelling = asyncio.get_running_loop().create_task(self._cancel())

    async def _cancel(self) -> None:
        """Cancels the running statement on the server, because cutting the connection would let it run to its end."""
        assert self._line is not None
        if self._line.status == psycopg.pq.TransactionStatus.ACTIVE:
            try:
                await self._line.connection.cancel_safe(timeout=CANCEL_S)
            except (psycopg.Error, OSError):
                pass
        self._line.cut()

    def _is_late(self) -> bool:
        return self.left_s <= 0

    def _milliseconds(self) -> str:
        return str(max(1, int(self.left_s * 1000)))

    def _timeout(self) -> TransactionTimeout:
        return TransactionTimeout(
            f"The transaction did not finish within {self._limit_s:.1f} s and was rolled back; nothing took effect. Do"
            " slow work before the block begins, or process fewer events in one transaction (batch_events)."
        )


# In a pipeline requests are sent together, and each is one statement: the server rejects a second one after a
# semicolon. The driver ends a pipeline with a message that stops the server's timeout for idle transactions. The next
# request outside a pipeline starts it again. So such a request comes last wherever the application may pause
# afterwards.
async def _begin(connection: Connection, milliseconds: str, record: bytes, key: tuple[object, ...]) -> Rows:
    async with connection.pipeline():
        await connection.execute(_BEGIN)
        await connection.execute(_LIMITS, (milliseconds,))
        if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
            await connection.execute(_LIMIT_OF_ALL, (milliseconds,))
        await connection.execute(_APPLICATION, ("on",))
    cursor = await connection.execute(record, key)
    return await cursor.fetchall()


async def _end(connection: Connection, keep: bytes, values: tuple[object, ...]) -> Rows:
    async with connection.pipeline():
        await connection.execute(_APPLICATION, ("",))
        await connection.execute(keep, values)
        await connection.execute(b"COMMIT")
    return []


async def _run(connection: Connection, statement: str, values: tuple[object, ...]) -> Rows:
    if values:
        cursor = await connection.execute(statement.encode(), values)
    else:
        async with connection.pipeline():
            cursor = await connection.execute(statement.encode())
        await _start_clock(connection)
    return await cursor.fetchall() if cursor.description is not None else []


async def _run_many(connection: Connection, statement: str, rows: list[tuple[object, ...]]) -> Rows:
    async with connection.cursor() as cursor:
        await cursor.executemany(statement.encode(), rows)
    await _start_clock(connection)
    return []


async def _start_clock(connection: Connection) -> None:
    await connection.execute(b"SELECT 1")
