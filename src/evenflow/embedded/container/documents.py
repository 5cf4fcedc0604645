"""What a write does in its transaction, and how a document is kept: as the JSON that it is read as.

A document's own properties come first, then those that the container gives it, as in Cosmos DB: `_rid`, `_self`,
`_etag`, `_attachments` and `_ts`. Every change takes the next LSN of its range and, unless the container keeps no log,
is written to the log of all versions as well.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from evenflow.embedded.container.facts import TTL_ONLY_OWN, all_rows, one_row
from evenflow.embedded.container.opened import slot_of
from evenflow.errors import DocumentChanged, DocumentExists, DocumentMissing, Misconfigured
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from evenflow.embedded.container.facts import ContainerFacts
    from evenflow.embedded.container.keys import KeyPart
    from evenflow.embedded.container.pen import Turn

DOCUMENT_BYTES_MAX = 2 * 1024 * 1024
ID_CHARACTERS_MAX = 255
DEPTH_MAX = 128
EXPIRE_AT_ONCE = 100
"""How many documents whose time has come a write removes on its way."""
TRIM_AT_ONCE = 500
SYSTEM = frozenset(("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"))
"""What a document gets from the container; of what somebody writes it is left out."""

Kind: TypeAlias = Literal["create", "replace", "delete"]
Way: TypeAlias = Literal["create", "upsert", "replace"]


class Written(Struct, frozen=True, kw_only=True):
    """A document as it is stored, or was until it was deleted: `body` is its JSON."""

    body: bytes
    etag: str
    lsn: int
    range: str
    """Where it is, and the LSN that it has there."""
    is_new: bool = False

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


class Stored(NamedTuple):
    """A row of documents."""

    number: int
    range: int
    lsn: int
    etag: str
    body: bytes
    expires_s: int | None

    def is_over(self, now_us: int) -> bool:
        return self.expires_s is not None and self.expires_s * MICROSECONDS <= now_us


class Draft(NamedTuple):
    """A document to be written."""

    id: str
    parts: tuple[KeyPart, ...]
    epk: str
    own: bytes
    """The JSON of its own properties, without the last brace."""
    ttl_s: int | None


def checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document that may be no JSON: there is no infinity, and nothing that is "not a number", in it."""
    if not isinstance(document, Mapping):
        raise Misconfigured(
            f"A document is a dictionary, not {document!r:.60}. Several are a list of them: upsert_many()."
        )
    _check_inside(document, 0)
    return document


def _check_inside(value: Any, depth: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Misconfigured(f"A document cannot hold {value}: it is no JSON, and would be stored as null.")
    if depth > DEPTH_MAX:
        raise Misconfigured(f"A document is nested up to {DEPTH_MAX} deep.")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _check_inside(inner, depth + 1)


def drafted(facts: ContainerFacts, document: Mapping[str, Any]) -> Draft:
    """A document as somebody gives it, checked."""
    own = {name: value for name, value in document.items() if name not in SYSTEM}
    id = checked_id(own.get("id"))
    parts = facts.keys.of(own)
    try:
        encoded = msgspec.json.encode(own)
        epk = facts.keys.epk(parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misconfigured(f"The document {id!r} is no JSON: {error}.") from error
    if encoded.count(b"[") + encoded.count(b"{") > DEPTH_MAX:
        # It may be too deep; most documents cannot be, and are not looked through.
        _check_inside(own, 0)
    if len(encoded) > DOCUMENT_BYTES_MAX:
        raise Misconfigured(f"The document {id!r} has {len(encoded):,} bytes; {DOCUMENT_BYTES_MAX:,} are allowed.")
    return Draft(id, parts, epk, encoded[:-1], _ttl_s(facts, own.get("ttl")))


def checked_id(id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= ID_CHARACTERS_MAX or any(sign in id for sign in "/\\?#"):
        raise Misconfigured(
            f"A document needs an id: text of 1 to {ID_CHARACTERS_MAX} characters, none of them / \\ ? or #. "
            f"It is {id!r:.100}."
        )
    return id


def _ttl_s(facts: ContainerFacts, own: object) -> int | None:
    if own is not None and (not isinstance(own, int) or isinstance(own, bool) or own == 0 or own < TTL_ONLY_OWN):
        raise Misconfigured(f"The ttl of a document is a whole number of seconds above zero, or -1, not {own!r}.")
    ttl_s = facts.default_ttl_s if own is None else own
    return None if facts.default_ttl_s is None or ttl_s == TTL_ONLY_OWN else ttl_s


def put(draft: Draft, way: Way, if_match: str | None) -> Callable[[Turn], Written]:
    """The step that writes a document."""

    def step(turn: Turn) -> Written:
        before = _before(turn, draft.epk, draft.id)
        if way == "create" and before is not None:
            raise DocumentExists(f"There is a document {draft.id!r} with this partition key already.")
        if way == "replace" or (before is not None and if_match is not None):
            before = _expected(before, draft.id, if_match)
        return _change(turn, draft, before)

    return step


def delete(epk: str, id: str, if_match: str | None) -> Callable[[Turn], Written]:
    """The step that deletes a document; what it returns is what was there."""

    def step(turn: Turn) -> Written:
        before = _expected(_before(turn, epk, id), id, if_match)
        lsn = _remove(turn, before, epk, expired=False)
        return Written(body=before.body, etag=before.etag, lsn=lsn, range=str(before.range))

    return step


def live(connection: apsw.Connection, epk: str, id: str, now_us: int) -> Stored | None:
    """The document, unless its time has come."""
    found = _stored(connection, epk, id)
    return None if found is None or found.is_over(now_us) else found


def _before(turn: Turn, epk: str, id: str) -> Stored | None:
    """The same for a write; a document whose time has come goes first, as a change of its own."""
    found = _stored(turn.connection, epk, id)
    if found is not None and found.is_over(turn.now_us):
        _remove(turn, found, epk, expired=True)
        return None
    return found


def _stored(connection: apsw.Connection, epk: str, id: str) -> Stored | None:
    row = connection.execute(
        "SELECT number, range, lsn, etag, body, expires_s FROM documents WHERE epk = ? AND id = ?", (epk, id)
    ).fetchone()
    return None if row is None else Stored(*row)


def missing(id: str) -> DocumentMissing:
    return DocumentMissing(f"There is no document {id!r} with this partition key.")


def _expected(before: Stored | None, id: str, if_match: str | None) -> Stored:
    if before is None:
        raise missing(id)
    if if_match not in (None, "*", before.etag):
        raise DocumentChanged(f"The document {id!r} has the ETag {before.etag}, not {if_match}: read it again.")
    return before


def _change(turn: Turn, draft: Draft, before: Stored | None) -> Written:
    place = before.range if before is not None else _range_of(turn.connection, draft.epk)
    lsn = _next_lsn(turn, place)
    now_s = turn.now_us // MICROSECONDS
    etag = f'"{token_hex(4)}-0000-0000-0000-{token_hex(6)}"'
    expires_s = None if draft.ttl_s is None else now_s + draft.ttl_s
    number = before.number if before is not None else _next_number(turn.connection)
    body = draft.own + _system(turn.facts, number, etag, now_s)
    turn.connection.execute(
        "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, place, lsn, draft.epk, draft.id, etag, turn.now_us, expires_s, body),
    )
    _note(turn, place, lsn, draft.epk, "replace" if before is not None else "create", body=body, before=before)
    return Written(body=body, etag=etag, lsn=lsn, range=str(place), is_new=before is None)


def _remove(turn: Turn, before: Stored, epk: str, *, expired: bool) -> int:
    lsn = _next_lsn(turn, before.range)
    turn.connection.execute("DELETE FROM documents WHERE number = ?", (before.number,))
    _note(turn, before.range, lsn, epk, "delete", before=before, expired=expired)
    return lsn


def _note(
    turn: Turn,
    place: int,
    lsn: int,
    epk: str,
    kind: Kind,
    *,
    before: Stored | None,
    body: bytes | None = None,
    expired: bool = False,
) -> None:
    if turn.facts.retention_s == 0:
        return
    previous = (None, None) if before is None else (before.lsn, before.body)
    turn.connection.execute(
        "INSERT INTO changes (range, lsn, epk, kind, expired, changed_us, previous_lsn, previous, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (place, lsn, epk, kind, expired, turn.now_us, *previous, body),
    )


def _range_of(connection: apsw.Connection, epk: str) -> int:
    (found,) = one_row(
        connection, "SELECT id FROM ranges WHERE NOT gone AND min <= ? ORDER BY min DESC LIMIT 1", (epk,)
    )
    return int(found)


def _next_lsn(turn: Turn, place: int) -> int:
    turn.rung.add(slot_of(place))
    (lsn,) = one_row(turn.connection, "UPDATE ranges SET lsn = lsn + 1 WHERE id = ? RETURNING lsn", (place,))
    return int(lsn)


def _next_number(connection: apsw.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return 1 if row is None else int(row[0]) + 1


def _system(facts: ContainerFacts, number: int, etag: str, now_s: int) -> bytes:
    rid = b64encode(facts.rid + number.to_bytes(8, "little"), b"+-").decode()
    database = b64encode(facts.rid[:4], b"+-").decode()
    own = f"dbs/{database}/colls/{facts.rid_text}/docs/{rid}/"
    tag = etag.strip('"')
    return (
        f',"_rid":"{rid}","_self":"{own}","_etag":"\\"{tag}\\"","_attachments":"attachments/","_ts":{now_s}}}'
    ).encode()


def number_of(facts: ContainerFacts, rid: str) -> int:
    """The number of a document, out of its `_rid`; 0 when it is none of this container's."""
    try:
        found = b64decode(rid, b"+-", validate=True)
    except ValueError:
        return 0
    is_ours = len(found) == len(facts.rid) + 8 and found.startswith(facts.rid) and found[-1] < 0x80
    return int.from_bytes(found[len(facts.rid) :], "little") if is_ours else 0


def expire(turn: Turn) -> int:
    """Remove some of the documents whose time has come, each a change of its own; how many it were."""
    rows = all_rows(
        turn.connection,
        "SELECT number, range, lsn, etag, body, expires_s, epk FROM documents WHERE expires_s <= ? "
        "ORDER BY expires_s LIMIT ?",
        (turn.now_us // MICROSECONDS, EXPIRE_AT_ONCE),
    )
    for *fields, epk in rows:
        _remove(turn, Stored(*fields), epk, expired=True)
    return len(rows)


def trim(turn: Turn) -> int:
    """Remove some of the log that retention no longer keeps; how many changes it were."""
    if not turn.facts.retention_us:
        return 0
    rows = all_rows(
        turn.connection,
        "SELECT number, range, lsn, epk, changed_us FROM changes ORDER BY number LIMIT ?",
        (TRIM_AT_ONCE,),
    )
    old = [row for row in rows if row[4] < turn.now_us - turn.facts.retention_us]
    for number, place, lsn, epk, _ in old:
        turn.connection.execute("DELETE FROM changes WHERE number = ?", (number,))
        turn.connection.execute(
            "UPDATE floors SET lsn = max(lsn, ?) WHERE range = ? AND min <= ? AND ? < max", (lsn, place, epk, epk)
        )
    return len(old)
