"""Which statements an application may execute inside an evenflow transaction: all that stay inside the transaction.

SQLite's authorizer reports every action of a statement before it runs, with names resolved and triggers and views
expanded, so this module parses no SQL. Setting an authorizer makes SQLite check cached statements again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OURS = "evenflow_"
CHECK_STEPS = 10_000
"""Virtual machine steps between two interrupt checks: about a millisecond."""

ENDS = (
    "BEGIN, COMMIT, ROLLBACK and savepoints are not allowed inside a transaction; it commits at the end of its block."
)
SETTINGS = "PRAGMA is not allowed inside a transaction, except to list columns: the connection belongs to evenflow."
FILES = "ATTACH and DETACH are not allowed inside a transaction: effects in another file would not commit with it."
TEMPORARY = "Temporary tables, views and triggers are not allowed inside a transaction: the connection is shared."

_REFUSED = {
    apsw.SQLITE_TRANSACTION: ENDS,
    apsw.SQLITE_SAVEPOINT: ENDS,
    apsw.SQLITE_ATTACH: FILES,
    apsw.SQLITE_DETACH: FILES,
    apsw.SQLITE_CREATE_TEMP_INDEX: TEMPORARY,
    apsw.SQLITE_CREATE_TEMP_TABLE: TEMPORARY,
    apsw.SQLITE_CREATE_TEMP_TRIGGER: TEMPORARY,
    apsw.SQLITE_CREATE_TEMP_VIEW: TEMPORARY,
}
_HARMLESS = {
    apsw.SQLITE_READ,
    apsw.SQLITE_SELECT,
    apsw.SQLITE_FUNCTION,
    apsw.SQLITE_RECURSIVE,
    apsw.SQLITE_ANALYZE,
    apsw.SQLITE_REINDEX,
}
_READING_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "page_size", "data_version"}
"""SQLite's full-text index uses the last two."""
_TABLE_IS_SECOND = {
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
}


def refusal(action: int, first: str | None, second: str | None) -> str:
    """Why a statement may not perform this action; "" if it may."""
    if action in _HARMLESS:
        return ""
    if action == apsw.SQLITE_PRAGMA:
        is_reading = first in _READING_PRAGMAS and not (first == "page_size" and second)
        return "" if is_reading else SETTINGS
    if (why := _REFUSED.get(action)) is not None:
        return why
    table = second if action in _TABLE_IS_SECOND else first
    if (table or "").lower().startswith(OURS):
        return f"Table {table} cannot be written: tables named {OURS}... are evenflow's own. Reading them is allowed."
    return ""


class StatementGuard:
    def __init__(self) -> None:
        self._why = ""

    @contextmanager
    def guarding(self, connection: apsw.Connection, must_stop: Callable[[], bool]) -> Iterator[None]:
        """Guards the application's statements inside the block, and interrupts them when `must_stop` returns True."""
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(must_stop, CHECK_STEPS)
        try:
            yield
        finally:
            connection.set_progress_handler(None)
            connection.set_authorizer(None)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replaces SQLite's "not authorized" with the reason."""
        self._why = ""
        try:
            yield
        except apsw.AuthError as error:
            if self._why:
                raise Misconfigured(self._why) from error
            raise

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        if why := refusal(action, first, second):
            self._why = why
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK
