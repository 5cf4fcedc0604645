"""A store for many machines on a PostgreSQL server: one round trip per heartbeat, and handoffs in milliseconds.

Atomic decisions are made by functions in the database (`functions`), under the group's row lock. This module calls them
and decodes their answers. Leases have a connection of their own, so that neither a commit that waits for a lock nor an
application's transaction delays a heartbeat.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from evenflow.drivers.postgresql.driver import (
    STORE,
    FunctionError,
    PostgreSQLOptions,
    SchemaMissing,
    check_name,
    parse_switch,
    split_options,
)
from evenflow.drivers.postgresql.pool import ConnectionFactory, ConnectionPool
from evenflow.errors import Misconfigured, StoreUnavailable, TransactionTimeout
from evenflow.model import Action, Group, Move, Outcome
from evenflow.stores import rules
from evenflow.stores.damage import names_damaged_record
from evenflow.stores.postgresql import codec as records
from evenflow.stores.postgresql import setup as postgresql_setup
from evenflow.stores.postgresql.damage import TEXTS, first_damaged
from evenflow.stores.postgresql.schema import SCHEMA, placed, script
from evenflow.stores.postgresql.transactions import PostgreSQLTransaction
from evenflow.stores.postgresql.wakeups import PostgreSQLWakeups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from evenflow.drivers.postgresql.driver import Connection
    from evenflow.errors import Corrupt
    from evenflow.model import Change, Checkpoint, Cursor, GroupState, Ledger, Member, PartitionId, Steering

__all__ = ["PostgreSQLStore", "from_url", "script"]

T = TypeVar("T")

TRANSACTIONS = 8
PROGRESS_LINES = 2

_HEARTBEAT = "SELECT evenflow.heartbeat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
_SWAP = "SELECT evenflow.swap($1, $2, $3, $4)"
_SEAL = "SELECT evenflow.seal($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_COMMIT = "SELECT evenflow.commit($1, $2, $3, $4)"
_PEEK = "SELECT evenflow.peek($1, $2, $3)"
_DELETE = "SELECT evenflow.delete($1, $2, $3)"
_RECORD = "SELECT evenflow.record($1, $2, $3, $4, $5, $6, $7, extract(epoch FROM clock_timestamp()))"
_WAKE = "SELECT evenflow.wake($1, $2, $3, '')"
_GROUPS = """
SELECT namespace, hub, name FROM evenflow.groups
UNION SELECT namespace, hub, consumer_group FROM evenflow.checkpoints"""
_CHECKPOINTS = """
SELECT partition, epoch, "offset", sequence, ordinal, notes, event_at, begun, fruitless, effects, changed_at, edition
FROM evenflow.checkpoints WHERE namespace = $1 AND hub = $2 AND consumer_group = $3"""
_MOVES = """
SELECT partition, before, after, epoch, reason, at FROM evenflow.moves
WHERE group_id = (SELECT id FROM evenflow.groups WHERE namespace = $1 AND hub = $2 AND name = $3)
ORDER BY number DESC LIMIT $4"""
_ACTIONS = """
SELECT kind, done_by, why, what, at FROM evenflow.actions
WHERE namespace = $1 AND hub = $2 AND consumer_group = $3 ORDER BY number DESC LIMIT $4"""
_STATE = """
SELECT id, source, pauses, retired, redrives, extract(epoch FROM clock_timestamp())::double precision
FROM evenflow.groups WHERE namespace = $1 AND hub = $2 AND name = $3 FOR UPDATE"""
_KEEP_STATE = """
UPDATE evenflow.groups SET revision = revision + 1, pauses = $2, retired = $3, redrives = $4 WHERE id = $1"""


def from_url(url: str, *, create: bool = True) -> PostgreSQLStore:
    """`postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, with options of evenflow and of the driver after a `?`."""
    rest, given = split_options(url, STORE.options)
    return PostgreSQLStore(
        rest,
        schema=given.get("schema", SCHEMA),
        listen=parse_switch("listen", given.get("listen", "on")),
        transactions=_number(given.get("transactions", str(TRANSACTIONS))),
        create=create,
    )


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000:
        raise Misconfigured(
            f"transactions={text!r} must be a number from 1 to 1000: how many transactions may be open at once."
        )
    return int(text)


class PostgreSQLStore:
    """The contracts of Store, Transactional, Watchable, Operable and Steerable, in one schema of a database.

    The first operation connects, and creates the schema if it is missing. With `create=False`, for read-only tools, a
    missing schema is an error. With `listen=False`, for poolers in transaction mode, there are no wake-ups.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = SCHEMA,
        listen: bool = True,
        transactions: int = TRANSACTIONS,
        create: bool = True,
    ) -> None:
        self._schema = check_name(schema)
        self._address = PostgreSQLOptions(url)
        self._create = create
        self._factory = ConnectionFactory(self._address)
        self._leases = ConnectionPool(self._factory, 1)
        self._progress = ConnectionPool(self._factory, PROGRESS_LINES)
        self._transactions = ConnectionPool(self._factory, transactions)
        self._open: set[PostgreSQLTransaction] = set()
        self._wakes = PostgreSQLWakeups(self._factory, schema) if listen else None
        self._preparing = asyncio.Lock()
        self._is_prepared = False
        self._sent_facts: dict[tuple[Group, str], str] = {}
        """Digest of each member's facts that the store already has, so that they are not sent again."""

    def __repr__(self) -> str:
        return f"PostgreSQLStore({str(self._address)!r}, schema={self._schema!r})"

    # --- the ledger
    @names_damaged_record
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        facts = records.facts_of(member)
        is_known = self._sent_facts.get((group, member.id)) == facts.digest and not member.leaving
        try:
            answer = await self._heartbeat(group, member, since, facts, is_known=is_known)
            if answer is None:
                answer = await self._heartbeat(group, member, since, facts, is_known=False)
        except FunctionError as error:
            rules.admit_incarnation(records.newer_of(error.detail, member), member, newest=0, history=0)
            raise AssertionError("the function reported a newer incarnation") from error
        self._sent_facts[group, member.id] = facts.digest
        assert answer is not None
        return records.ledger_of(answer, member)

    async def _heartbeat(
        self, group: Group, member: Member, since: Cursor | None, facts: records.MemberFacts, *, is_known: bool
    ) -> str | None:
        cursor = (since.lineage, since.history, since.revision) if since is not None else (None, None, None)
        fields = member.id, member.nonce, member.incarnation, member.leaving, member.source
        values = (*structs.astuple(group), *fields, facts.digest, None if is_known else facts.text, *cursor)
        answer: str | None = await self._call(self._leases, _HEARTBEAT, values)
        return answer

    @names_damaged_record
    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        answer = await self._call(self._leases, _SWAP, (*structs.astuple(group), records.changes_text(changes)))
        return records.outcomes_of(answer, changes)

    # --- progress
    @names_damaged_record
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        at, notes = default.position, records.notes_text(default)
        values = (partition, epoch, unplanned, at.offset, at.sequence, default.ordinal, notes)
        answer = await self._call(
            self._progress, _SEAL, (*structs.astuple(group), *values, default.event_at, default.effects)
        )
        record, history, floor = records.sealed_of(answer)
        rules.seal(record, partition, epoch, default, 0.0, history=history, floor=floor)
        assert record is not None, "a seal that the rules accept returns a record"
        return record

    @names_damaged_record
    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        values = (*structs.astuple(group), records.checkpoints_text(checkpoints))
        refused = set(await self._call(self._progress, _COMMIT, values))
        return [
            Outcome(partition=record.partition, ok=False, why="epoch")
            if number in refused
            else Outcome(partition=record.partition, ok=True)
            for number, record in enumerate(checkpoints)
        ]

    @asynccontextmanager
    async def transaction(
        self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float
    ) -> AsyncIterator[PostgreSQLTransaction]:
        rules.check_group(group)
        transaction = PostgreSQLTransaction(self._address, self._schema, limit_s)
        await self._prepare()
        try:
            line, _ = await self._transactions.take(max(0.0, transaction.left_s))
        except StoreUnavailable as error:
            if transaction.left_s <= 0:
                raise TransactionTimeout from error
            raise
        self._open.add(transaction)
        try:
            await transaction.begin(line, group, checkpoint, committed=committed, start=start)
            yield transaction
            await transaction.commit(group, checkpoint)
        except BaseException as error:
            await transaction.roll_back()
            if isinstance(error, SchemaMissing):
                self._is_prepared = False
            raise
        finally:
            transaction.close()
            self._open.discard(transaction)
            self._transactions.give_back(line)

    async def aclose(self) -> None:
        self._factory.closed.set()
        for transaction in self._open:
            transaction.give_up()
        if self._wakes is not None:
            await self._wakes.aclose()
        for pool in (self._leases, self._progress, self._transactions):
            pool.close()

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        if self._wakes is None:
            return lambda: None
        return self._wakes.watch(group, instance, wake)

    # --- for operators: reads
    async def groups(self) -> Sequence[Group]:
        return sorted([Group(*row) for row in await self._rows(_GROUPS, ())], key=str)

    @names_damaged_record
    async def peek(self, group: Group) -> Ledger | None:
        answer = await self._call(self._progress, _PEEK, structs.astuple(group))
        return None if answer is None else records.ledger_of(answer, None)

    @names_damaged_record
    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        return [records.checkpoint_of(row) for row in await self._rows(_CHECKPOINTS, structs.astuple(group))]

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        rows = await self._rows(_MOVES, (*structs.astuple(group), limit))
        return [
            Move(partition=partition, before=before, after=after, epoch=epoch, reason=reason, at=at)
            for partition, before, after, epoch, reason, at in rows
        ]

    async def delete(self, group: Group) -> None:
        await self._call(self._progress, _DELETE, structs.astuple(group))

    # --- for operators: changes
    @names_damaged_record
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        return await self._run(self._progress, lambda connection: self._steer(connection, group, steering, action))

    async def _steer(self, connection: Connection, group: Group, steering: Steering, action: Action) -> GroupState:
        key = structs.astuple(group)
        async with connection.transaction():
            await connection.execute(b"SELECT set_config('lock_timeout', '2s', true)")
            cursor = await connection.execute(self._text(_STATE), key)
            rows = await cursor.fetchall()
            if not rows:
                raise rules.no_such_group(group)
            number, source, pauses, retired, redrives, now_s = rows[0]
            kept = rules.stamp_action(action, now_s)
            before = records.state_of(source, pauses, retired, redrives)
            state = rules.steer(before, steering, rules.request_of(kept))
            await connection.execute(self._text(_KEEP_STATE), (number, *records.state_texts(state)))
            await connection.execute(self._text(_RECORD), (*key, kept.kind, kept.by, kept.why, kept.what))
            await connection.execute(self._text(_WAKE), key)
        return state

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        kept = rules.stamp_action(action, 0.0)
        values = (*structs.astuple(group), kept.kind, kept.by, kept.why, kept.what)
        await self._call(self._progress, _RECORD, values)

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        rows = await self._rows(_ACTIONS, (*structs.astuple(group), limit))
        return [Action(kind=kind, by=by, why=why, what=what, at=at) for kind, by, why, what, at in rows]

    async def find_damage(self, group: Group) -> Corrupt | None:
        rows: list[Any] = await self._rows(TEXTS, structs.astuple(group))
        return first_damaged(rows, f"{self._address}, schema {self._schema}")

    # --- requests
    async def _call(self, pool: ConnectionPool, statement: str, values: tuple[object, ...]) -> Any:
        """Calls a function of the schema and returns its result."""
        ((answer,),) = await self._ask(pool, statement, values)
        return answer

    async def _rows(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return await self._ask(self._progress, statement, values)

    async def _ask(self, pool: ConnectionPool, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        text = self._text(statement)

        async def ask(connection: Connection) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(text, values)
            return await cursor.fetchall()

        return await self._run(pool, ask)

    async def _run(self, pool: ConnectionPool, work: Callable[[Connection], Awaitable[T]]) -> T:
        await self._prepare()
        try:
            return await pool.run(work)
        except SchemaMissing:
            # The schema was dropped, so the request had no effect and can be repeated.
            self._is_prepared = False
            await self._prepare()
            return await pool.run(work)

    async def _prepare(self) -> None:
        if self._factory.closed.is_set():
            raise self._factory.is_closed()
        if self._is_prepared:
            return
        async with self._preparing:
            if not self._is_prepared:
                await self._progress.run(
                    lambda connection: postgresql_setup.prepare(
                        connection, self._address, self._schema, create=self._create
                    ),
                    postgresql_setup.SETUP_S,
                )
                self._is_prepared = self._address.has_served = True

    def _text(self, statement: str) -> bytes:
        return placed(statement, self._schema).encode()
