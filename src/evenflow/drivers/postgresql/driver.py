"""Connection options for psycopg, the PostgreSQL driver, and the translation of its errors.

Statements are never prepared under a name, so that a pooler may use another server connection for each transaction.
Messages show only host, port and database of a URL, never a password.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode

from evenflow.drivers.network import NotDone, refusal, unknown_option, why_unreached
from evenflow.errors import Corrupt, EvenflowError, Misconfigured, StorageFull, StoreUnavailable, Transient

try:
    import psycopg as psycopg
except ImportError as error:
    raise Misconfigured("PostgreSQL needs the driver psycopg: pip install 'evenflow[postgresql]'.") from error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    Cursor: TypeAlias = psycopg.AsyncCursor[tuple[Any, ...]]
    Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

PORT = "5432"
DEFAULTS = {
    "application_name": "evenflow",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""Defaults that the URL may override. Keepalives detect a broken connection within seconds, even when it is idle."""
ALWAYS = {"client_encoding": "UTF8"}
"""Overrides the URL: JSON is decoded as UTF-8."""

# libpq returns no code when a connection is refused, only the server's message. A message in another language than
# English is not recognised and counts as an outage: it is shown, and the connection is retried.
_REFUSALS = (
    "password authentication failed",
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "permission denied for database",
    "is not permitted to log in",
    "no such user",
    "does not exist",
    "certificate verify failed",
    "server does not support ssl",
)

_POINTED = re.compile(r"\nLINE \d+: .*\n *\^")
_NO_OPTION = re.compile(r'invalid URI query parameter: "([^"]*)"')

_AGAIN = {"40001", "40P01"}
"""Rolled back because of concurrent transactions; can be retried at once."""
_GONE = {"42883", "42P01", "3F000", "42703"}
"""A function, table or schema of evenflow is missing."""


# Raised without its cause, whose text contains the whole URL.
NOT_UNDERSTOOD = (
    "The URL cannot be understood. Use postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and percent-encode special"
    " characters."
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


class SchemaMissing(StoreUnavailable):
    """A table or function of evenflow is missing in the database. The store creates it again."""


class PostgreSQLUse(NamedTuple):
    """What connections are used for (a store or a source), with its error types and its URL options."""

    what: str
    unreachable: type[Transient]
    missing: type[EvenflowError]
    options: tuple[str, ...]
    """evenflow's own URL options."""
    grants: str
    """Where the required permissions are documented."""


STORE = PostgreSQLUse(
    "store",
    StoreUnavailable,
    SchemaMissing,
    ("schema", "listen", "transactions"),
    "evenflow.stores.postgresql.store.script(schema, role) returns the required grants",
)


class FunctionError(Exception):
    """An error that one of evenflow's functions in the database raised with its own code."""

    def __init__(self, code: str, message: str, detail: str) -> None:
        super().__init__(message)
        self.code, self.message, self.detail = code, message, detail


class PostgreSQLOptions:
    """Connection options of one database. Its text contains no secrets."""

    def __init__(self, url: str, purpose: PostgreSQLUse = STORE) -> None:
        self.purpose = purpose
        try:
            self._parameters: Mapping[str, Any] = {
                **DEFAULTS,
                **psycopg.conninfo.conninfo_to_dict(url),
                **ALWAYS,
            }
        except psycopg.Error as error:
            raise Misconfigured(_unknown_option(error, url, purpose) or NOT_UNDERSTOOD) from None
        if not all(port.isdecimal() for port in str(self._parameters.get("port") or 0).split(",")):
            raise Misconfigured(NOT_UNDERSTOOD)
        if "@" in str(self._parameters.get("host") or ""):
            raise Misconfigured(f"{NOT_UNDERSTOOD} An @ in a password is written %40.")
        self.has_served = False
        """The schema was complete and this role was allowed to use it, so a later refusal is a change of
        permissions."""

    def __str__(self) -> str:
        host, port = self._host, self._parameters.get("port")
        return f"postgresql://{host}{f':{port}' if port else ''}/{self._parameters.get('dbname') or ''}"

    @property
    def _host(self) -> str:
        return str(self._parameters.get("host") or self._parameters.get("hostaddr") or "localhost")

    @property
    def hosts(self) -> str:
        """Host and port of each configured host."""
        ports = str(self._parameters.get("port") or PORT).split(",")
        hosts = self._host.split(",")
        return ", ".join(f"{host}:{ports[min(at, len(ports) - 1)]}" for at, host in enumerate(hosts))

    @property
    def user(self) -> str:
        return str(self._parameters.get("user") or "this role")

    def refused(self, what: str) -> EvenflowError:
        return refusal(what, has_served=self.has_served, by=self.purpose.what, unreachable=self.purpose.unreachable)

    async def connect(self) -> Connection:
        try:
            connection = await psycopg.AsyncConnection.connect(
                "",
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.AsyncRawCursor,
                **self._parameters,
            )
        except psycopg.Error as error:
            raise self._refusal(error) from error
        # Overrides the database's default: after waiting for a lock, a transaction must see the committed change.
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        return connection

    def _refusal(self, error: psycopg.Error) -> EvenflowError:
        text = one_line(error)
        lowered = text.lower()
        if isinstance(error, psycopg.ProgrammingError):
            return Misconfigured(f"{self}: the URL contains something that the driver does not know: {text}.")
        if "invalid" in lowered and " value" in lowered and "connection to server" not in lowered:
            return Misconfigured(f"{self}: an option in the URL has a value that the driver does not know: {text}.")
        if ('database "' in lowered and "does not exist" in lowered) or "no such database" in lowered:
            return self.refused(f"There is no database at {self}. Create it, or correct the URL: {text}.")
        if any(part in lowered for part in _REFUSALS):
            return self.refused(f"{self} refuses the connection. Correct the URL or the server's access rules: {text}.")
        if "fatal:" in lowered:  # the server is starting, shutting down, or out of connections
            return self.purpose.unreachable(f"{self} accepts no connection now: {text}")
        return self.purpose.unreachable(f"{self} cannot be reached: {why_unreached(error, self.hosts, 'PostgreSQL')}")


def one_line(error: BaseException) -> str:
    """The message on one line, without the excerpt of evenflow's SQL."""
    return " ".join(_POINTED.sub("", str(error)).split())


def split_options(url: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Splits evenflow's own options from a URL: returns the remaining URL and those options."""
    before, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([pair for pair in pairs if pair[0] not in names])
    return f"{before}?{rest}" if rest else before, {name: value for name, value in pairs if name in names}


def _unknown_option(error: psycopg.Error, url: str, purpose: PostgreSQLUse) -> str:
    """The message for an option that the driver does not know; "" if the URL is invalid for another reason."""
    named = _NO_OPTION.search(str(error))
    before, _, query = url.partition("?")
    if named is None or ("@" in unquote(query) and "@" not in before):  # a password with a '?', perhaps
        return ""
    known = unknown_option(named[1], purpose.options)
    return (
        f"Invalid URL of the PostgreSQL {purpose.what}: {known}, and PostgreSQL's own (sslmode, sslrootcert,"
        " connect_timeout, target_session_attrs and others)."
    )


def parse_switch(name: str, text: str) -> bool:
    """Parses an option that is on or off."""
    if text.lower() not in _SWITCH:
        raise Misconfigured(f"{name}={text!r}: use on, or off behind a pooler in transaction mode.")
    return _SWITCH[text.lower()]


def check_name(schema: str) -> str:
    """Accepts a schema name that needs no quotes."""
    if _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise Misconfigured(
            f"schema={schema!r}: use at most 40 lower-case letters, digits and underscores, not starting with a digit"
            " or pg_."
        )
    return schema


def undecoded(connection: Connection) -> Cursor:
    """A binary cursor that returns JSON as bytes."""
    cursor = connection.cursor(binary=True)
    cursor.adapters.register_loader("json", psycopg.types.string.ByteaBinaryLoader)
    return cursor


def is_to_be_repeated(error: psycopg.Error) -> bool:
    return error.sqlstate in _AGAIN


@contextmanager
def translated(where: PostgreSQLOptions) -> Iterator[None]:
    """Translates the driver's errors."""
    try:
        yield
    except psycopg.Error as error:
        raise translation(error, where) from error


def translation(error: psycopg.Error, where: PostgreSQLOptions) -> Exception:
    code, text, unreachable = error.sqlstate or "", one_line(error), where.purpose.unreachable
    if code.startswith("EV"):
        return FunctionError(code, error.diag.message_primary or "", error.diag.message_detail or "")
    if code == "53100":
        return StorageFull(f"The disk of {where} is full. Free some space there: {text}")
    if code in _GONE:
        return where.purpose.missing(f"{where}: {text}")
    if code == "42501":
        return where.refused(
            f"{where}: {where.user} may not do this: {text}. Ask an administrator to grant it: {where.purpose.grants}."
        )
    if code in ("XX001", "XX002"):
        return Corrupt(f"{where}: the server reports damaged data: {text}")
    if code[:2] in ("28", "3D"):
        return where.refused(f"{where} refuses the connection: {text}.")
    if code[:2] == "22" or isinstance(error, psycopg.DataError):
        return NotDone(f"{where} cannot store this value: {text}")
    if code == "55P03":
        return unreachable(f"{where}: another transaction held a lock for too long: {text}")
    return unreachable(f"{where} failed: {text}")


def is_application_error(error: psycopg.Error) -> bool:
    """Whether the application's own statement caused this error: syntax, a constraint, a type."""
    code = error.sqlstate
    if code is None:
        return not isinstance(error, psycopg.OperationalError)
    return code[:2] not in ("08", "40", "53", "57", "58", "XX") and code not in ("25P03", "25P04", "25006", "55P03")
