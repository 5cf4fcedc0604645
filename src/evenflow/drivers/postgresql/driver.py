"""The driver of PostgreSQL, psycopg, and what its errors mean: here they become ours, a store's or a source's.

No statement is prepared under a name, so that a pooler in front of the server may give each transaction another one.
Nothing here says a password: of a URL only host, port and database are ever shown.
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
"""Of a URL that are ours, and not the driver's."""
DEFAULTS = {
    "application_name": "evenflow",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""What a connection has unless the URL says otherwise: one that was cut is noticed in seconds, also when it is idle."""
ALWAYS = {"client_encoding": "UTF8"}
"""Whatever the URL says: JSON is taken as it comes."""

# libpq tells no code when a connection is refused, only the server's sentence. One in another language than English
# is not understood here, and counts as an outage: it is shown, and tried again.
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
"""It was rolled back as a whole, because of others: it can be asked once more at once."""
_GONE = {"42883", "42P01", "3F000", "42703"}
"""A function, table or schema of ours is not there (any more)."""


# Raised without its cause, whose text has the whole URL in it.
NOT_UNDERSTOOD = (
    "The URL cannot be understood. Write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %-codes in place of"
    " odd characters."
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


class SchemaGone(StoreUnavailable):
    """A table or function of evenflow's is missing in the database. It is made anew."""


class Purpose(NamedTuple):
    """What connections are for, and the errors that say that the server does not answer, or lacks what is ours."""

    what: str
    away: type[Transient]
    gone: type[EvenflowError]
    options: tuple[str, ...]
    """Those of a URL that are ours."""
    grants: str
    """Where it is said which rights a role needs."""


STORE = Purpose(
    "store",
    StoreUnavailable,
    SchemaGone,
    ("schema", "listen", "transactions"),
    "what a role needs is in what evenflow.stores.postgresql.store.script(schema, role) returns",
)


class Refused(Exception):
    """An error that a function of ours raised by its own code."""

    def __init__(self, code: str, message: str, detail: str) -> None:
        super().__init__(message)
        self.code, self.message, self.detail = code, message, detail


class Address:
    """Where the database is, and how to get there. What it shows has no secrets."""

    def __init__(self, url: str, purpose: Purpose = STORE) -> None:
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
        """What is ours was found whole, and this role allowed to use it: what is refused since was granted once."""

    def __str__(self) -> str:
        host, port = self._host, self._parameters.get("port")
        return f"postgresql://{host}{f':{port}' if port else ''}/{self._parameters.get('dbname') or ''}"

    @property
    def _host(self) -> str:
        return str(self._parameters.get("host") or self._parameters.get("hostaddr") or "localhost")

    @property
    def place(self) -> str:
        """Host and port; of several hosts, all."""
        ports = str(self._parameters.get("port") or PORT).split(",")
        hosts = self._host.split(",")
        return ", ".join(f"{host}:{ports[min(at, len(ports) - 1)]}" for at, host in enumerate(hosts))

    @property
    def user(self) -> str:
        return str(self._parameters.get("user") or "this role")

    def refused(self, what: str) -> EvenflowError:
        return refusal(what, has_served=self.has_served, by=self.purpose.what, away=self.purpose.away)

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
        # What the driver begins with from now on, whatever the database's default is: what a lock waited for is seen.
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        return connection

    def _refusal(self, error: psycopg.Error) -> EvenflowError:
        text = one_line(error)
        lowered = text.lower()
        if isinstance(error, psycopg.ProgrammingError):
            return Misconfigured(f"{self}: the URL names something that the driver does not know: {text}.")
        if "invalid" in lowered and " value" in lowered and "connection to server" not in lowered:
            return Misconfigured(f"{self}: an option in the URL has a value that the driver does not know: {text}.")
        if ('database "' in lowered and "does not exist" in lowered) or "no such database" in lowered:
            return self.refused(f"There is no database at {self}. Make it, or correct the URL: {text}.")
        if any(part in lowered for part in _REFUSALS):
            return self.refused(f"{self} refuses the connection. Correct the URL, or what the server allows: {text}.")
        if "fatal:" in lowered:  # the server's own words: it starts, or ends, or has no connection left
            return self.purpose.away(f"{self} takes no connection now: {text}")
        return self.purpose.away(f"{self} cannot be reached: {why_unreached(error, self.place, 'PostgreSQL')}")


def one_line(error: BaseException) -> str:
    """Without the piece of our own SQL that the server points to: it tells a user nothing."""
    return " ".join(_POINTED.sub("", str(error)).split())


def split_options(url: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The URL without the options that are ours, and those."""
    before, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([pair for pair in pairs if pair[0] not in names])
    return f"{before}?{rest}" if rest else before, {name: value for name, value in pairs if name in names}


def _unknown_option(error: psycopg.Error, url: str, purpose: Purpose) -> str:
    """The option that the driver does not know; "" when it is something else that it cannot read."""
    named = _NO_OPTION.search(str(error))
    before, _, query = url.partition("?")
    if named is None or ("@" in unquote(query) and "@" not in before):  # a password with a '?', perhaps
        return ""
    known = unknown_option(named[1], purpose.options)
    return (
        f"The URL of the PostgreSQL {purpose.what}: {known}, and what PostgreSQL itself takes (sslmode, sslrootcert,"
        " connect_timeout, target_session_attrs and others)."
    )


def switched(name: str, text: str) -> bool:
    """An option that is on or off."""
    if text.lower() not in _SWITCH:
        raise Misconfigured(f"{name}={text!r}: write on, or off where a pooler in transaction mode is in between.")
    return _SWITCH[text.lower()]


def check_name(schema: str) -> str:
    """A name that needs no quotes anywhere."""
    if _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise Misconfigured(
            f"schema={schema!r}: give it a name of lower-case letters, digits and underscores, 40 at most, that begins"
            " with a letter."
        )
    return schema


def undecoded(connection: Connection) -> Cursor:
    """A cursor of binary values that gives JSON as its bytes."""
    cursor = connection.cursor(binary=True)
    cursor.adapters.register_loader("json", psycopg.types.string.ByteaBinaryLoader)
    return cursor


def is_to_be_repeated(error: psycopg.Error) -> bool:
    return error.sqlstate in _AGAIN


@contextmanager
def translated(where: Address) -> Iterator[None]:
    """The driver's errors become ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translation(error, where) from error


def translation(error: psycopg.Error, where: Address) -> Exception:
    code, text, away = error.sqlstate or "", one_line(error), where.purpose.away
    if code.startswith("EV"):
        return Refused(code, error.diag.message_primary or "", error.diag.message_detail or "")
    if code == "53100":
        return StorageFull(f"The disk of {where} is full. Make room there: {text}")
    if code in _GONE:
        return where.purpose.gone(f"{where}: {text}")
    if code == "42501":
        return where.refused(
            f"{where}: {where.user} may not do this: {text}. Let an administrator grant it: {where.purpose.grants}."
        )
    if code in ("XX001", "XX002"):
        return Corrupt(f"{where}: the server found damage: {text}")
    if code[:2] in ("28", "3D"):
        return where.refused(f"{where} refuses the connection: {text}.")
    if code[:2] == "22" or isinstance(error, psycopg.DataError):
        return NotDone(f"{where} cannot keep this: {text}")
    if code == "55P03":
        return away(f"{where}: somebody else has held a lock for too long: {text}")
    return away(f"{where} did not do it: {text}")


def is_the_applications_own(error: psycopg.Error) -> bool:
    """Whether a statement of an application earned this error by itself: its syntax, a constraint, a type."""
    code = error.sqlstate
    if code is None:
        return not isinstance(error, psycopg.OperationalError)
    return code[:2] not in ("08", "40", "53", "57", "58", "XX") and code not in ("25P03", "25P04", "25006", "55P03")
