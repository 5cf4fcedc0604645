"""What an application may say to SQLite inside a transaction of evenflow's: anything but what would leave it.

SQLite asks about everything that a statement would do before it runs, with names resolved and triggers and views
followed, so nothing here reads SQL. Setting an authorizer makes SQLite ask again about statements that it has cached.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OURS = "evenflow_"
LOOK_STEPS = 10_000
"""So many steps of SQLite's machine between two looks whether to go on: about a millisecond."""

ENDS = "BEGIN, COMMIT, ROLLBACK and savepoints are not for inside a transaction: it is committed where its block ends."
SETTINGS = "PRAGMA is not for inside a transaction: the connection belongs to evenflow. (Those that list columns are.)"
FILES = "ATTACH and DETACH are not for inside a transaction: effects in another file are not committed with it."
TEMPORARY = "Temporary tables, views and triggers are not for inside a transaction: others share the connection."

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
"""SQLite's own full-text index asks for the last two."""
_TABLE_IS_SECOND = {
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
}


def refusal(action: int, first: str | None, second: str | None) -> str:
    """Why a statement may not do this; "" when it may."""
    if action in _HARMLESS:
        return ""
    if action == apsw.SQLITE_PRAGMA:
        is_reading = first in _READING_PRAGMAS and not (first == "page_size" and second)
        return "" if is_reading else SETTINGS
    if (why := _REFUSED.get(action)) is not None:
        return why
    table = second if action in _TABLE_IS_SECOND else first
    if (table or "").lower().startswith(OURS):
        return f"{table}: tables whose names begin with {OURS} are evenflow's own. Reading them is fine."
    return ""


class Guard:
    def __init__(self) -> None:
        self._why = ""

    @contextmanager
    def over(self, connection: apsw.Connection, must_stop: Callable[[], bool]) -> Iterator[None]:
        """Inside the block the application speaks; it is interrupted when it must stop."""
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(must_stop, LOOK_STEPS)
        try:
            yield
        finally:
            connection.set_progress_handler(None)
            connection.set_authorizer(None)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """A refusal with its reason, in place of SQLite's "not authorized"."""
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
