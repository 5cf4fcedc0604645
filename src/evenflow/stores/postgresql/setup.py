"""Creates and upgrades the schema, one process at a time, and checks the permissions of the role."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.postgresql.driver import psycopg
from evenflow.errors import Misconfigured
from evenflow.stores.postgresql import schema as texts

if TYPE_CHECKING:
    from evenflow.drivers.postgresql.driver import Connection, PostgreSQLOptions

SETUP_S = 30.0
"""Long, because another process may be creating the schema, or tables may have to be rewritten."""

SERVER_VERSION_LEAST = 140_000

_LOOK = b"""
SELECT to_regnamespace($1) IS NOT NULL,
    (SELECT substring(prosrc FROM '[0-9]+')::integer FROM pg_proc
     WHERE pronamespace = to_regnamespace($1) AND proname = 'version'),
    ARRAY(SELECT wanted FROM unnest($2::text[]) wanted WHERE NOT EXISTS (
        SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relname = wanted AND relkind = 'r')),
    CASE WHEN to_regnamespace($1) IS NOT NULL THEN ARRAY(
        SELECT 'USAGE ON SCHEMA ' || $1 WHERE NOT has_schema_privilege(to_regnamespace($1), 'USAGE')
        UNION ALL
        SELECT privilege || ' ON ' || $1 || '.' || relname
        FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) privilege
        WHERE relnamespace = to_regnamespace($1) AND relkind = 'r' AND NOT has_table_privilege(pg_class.oid, privilege)
        UNION ALL
        SELECT 'EXECUTE ON FUNCTION ' || $1 || '.' || proname FROM pg_proc
        WHERE pronamespace = to_regnamespace($1) AND NOT has_function_privilege(pg_proc.oid, 'EXECUTE')
        ) ELSE '{}' END"""


class SchemaStatus(NamedTuple):
    schema: bool
    version: int | None
    missing_tables: list[str]
    missing_grants: list[str]

    @property
    def is_whole(self) -> bool:
        return self.version == texts.VERSION and not self.missing_tables


async def prepare(connection: Connection, address: PostgreSQLOptions, schema: str, *, create: bool) -> None:
    """Makes sure that the schema exists in this version; raises Misconfigured if that is not possible."""
    if connection.info.server_version < SERVER_VERSION_LEAST:
        raise Misconfigured(
            f"{address} is PostgreSQL {connection.info.server_version // 10_000}; evenflow needs 14 or later."
        )
    found = await _look(connection, schema)
    if not found.is_whole:
        _check_version(found, address, schema)
        if not create:
            raise Misconfigured(
                f"There is no store in schema {schema} of {address} yet. The first processor that runs with it"
                " creates it; otherwise correct the URL."
            )
        try:
            found = await _make(connection, address, schema)
        except psycopg.errors.InsufficientPrivilege as error:
            raise address.refused(
                f"{address}: {address.user} may not make the schema {schema} ({error.diag.message_primary}). Ask an"
                " administrator to run the output of evenflow.stores.postgresql.store.script(schema, role), or to grant"
                " CREATE on the database."
            ) from error
    if found.missing_grants:
        raise address.refused(
            f"{address}: {address.user} lacks {', '.join(found.missing_grants)}. Ask an administrator to run:\n"
            + texts.grants(schema, address.user)
        )


async def _look(connection: Connection, schema: str) -> SchemaStatus:
    cursor = await connection.execute(_LOOK, (schema, list(texts.GUARDED)))
    (row,) = await cursor.fetchall()
    return SchemaStatus(*row)


def _check_version(found: SchemaStatus, address: PostgreSQLOptions, schema: str) -> None:
    if found.version is not None and found.version > texts.VERSION:
        raise Misconfigured(
            f"Schema {schema} of {address} was made by a newer evenflow (its version is {found.version}; this one"
            f" supports {texts.VERSION}). Update evenflow here, or use another schema: ?schema=NAME."
        )


async def _make(connection: Connection, address: PostgreSQLOptions, schema: str) -> SchemaStatus:
    async with connection.transaction():
        # Other starting processes wait here until the end of the transaction.
        await connection.execute(b"SELECT pg_advisory_xact_lock(hashtextextended('evenflow ' || $1, 0))", (schema,))
        found = await _look(connection, schema)
        _check_version(found, address, schema)
        if found.is_whole:
            return found
        if not found.schema:
            await connection.execute(f"CREATE SCHEMA {schema}".encode())
        for version in range(found.version or texts.VERSION, texts.VERSION):
            await connection.execute(texts.placed(texts.UPGRADES[version], schema).encode())
        await connection.execute(texts.making(schema).encode())
        if found.version is not None and any(
            texts.SINCE.get(table, 1) <= found.version for table in found.missing_tables
        ):
            # Existing tables were dropped together with their contents.
            await connection.execute(texts.placed("UPDATE evenflow.meta SET history = history + 1", schema).encode())
        return await _look(connection, schema)
