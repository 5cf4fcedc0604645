"""Writes documents inside a transaction, and defines how they are stored: as the JSON that readers get.

A document's own properties come first, then the system properties, as in Cosmos DB: `_rid`, `_self`, `_etag`,
`_attachments` and `_ts`. Every change takes the next LSN of its range. It is also written to the log of all versions,
unless the container keeps no log.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from evenflow.embedded.container.metadata import TTL_ONLY_OWN, all_rows, one_row
from evenflow.embedded.container.open_container import slot_of
from evenflow.errors import DocumentChanged, DocumentExists, DocumentMissing, Misconfigured
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from evenflow.embedded.container.keys import KeyPart
    from evenflow.embedded.container.metadata import ContainerMetadata
    from evenflow.embedded.container.write_queue import WriteTransaction

DOCUMENT_BYTES_MAX = 2 * 1024 * 1024
ID_CHARACTERS_MAX = 255
DEPTH_MAX = 128
EXPIRE_AT_ONCE = 100
"""How many expired documents one write removes."""
TRIM_AT_ONCE = 500
SYSTEM_PROPERTIES = frozenset(("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"))
"""Properties that the container sets. Those in a document to write are ignored."""

Kind: TypeAlias = Literal["create", "replace", "delete"]
WriteMode: TypeAlias = Literal["create", "upsert", "replace"]


class WriteResult(Struct, frozen=True, kw_only=True):
    """A document as it is stored, or was before its deletion: `body` is its JSON."""

    body: bytes
    etag: str
    lsn: int
    range: str
    """The range that holds it, in which it has this LSN."""
    is_new: bool = False

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


class StoredDocument(NamedTuple):
    """A row of the table of documents."""

    number: int
    range: int
    lsn: int
    etag: str
    body: bytes
    expires_s: int | None

    def is_expired(self, now_us: int) -> bool:
        return self.expires_s is not None and self.expires_s * MICROSECONDS <= now_us


class DocumentDraft(NamedTuple):
    """A document to be written."""

    id: str
    parts: tuple[KeyPart, ...]
    epk: str
    own: bytes
    """The JSON of its own properties, without the closing brace."""
    ttl_s: int | None


def checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check a document that may not be valid JSON: JSON has neither infinity nor NaN."""
    if not isinstance(document, Mapping):
        raise Misconfigured(
            f"A document must be a dictionary, not {document!r:.60}. For a list of documents, use upsert_many()."
        )
    _check_inside(document, 0)
    return document


def _check_inside(value: Any, depth: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Misconfigured(f"A document cannot hold {value}: JSON does not support it, and it would become null.")
    if depth > DEPTH_MAX:
        raise Misconfigured(f"The document is nested more than {DEPTH_MAX} levels deep. Use fewer levels.")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _check_inside(inner, depth + 1)


def draft_of(metadata: ContainerMetadata, document: Mapping[str, Any]) -> DocumentDraft:
    """Check a document and prepare it for writing."""
    own = {name: value for name, value in document.items() if name not in SYSTEM_PROPERTIES}
    id = checked_id(own.get("id"))
    parts = metadata.keys.of(own)
    try:
        encoded = msgspec.json.encode(own)
        epk = metadata.keys.epk(parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misconfigured(f"The document {id!r} cannot be encoded as JSON: {error}.") from error
    if encoded.count(b"[") + encoded.count(b"{") > DEPTH_MAX:
        # It may be too deep. Most documents have too few brackets for that and are not searched.
        _check_inside(own, 0)
    if len(encoded) > DOCUMENT_BYTES_MAX:
        raise Misconfigured(f"The document {id!r} has {len(encoded):,} bytes; the maximum is {DOCUMENT_BYTES_MAX:,}.")
    return DocumentDraft(id, parts, epk, encoded[:-1], _ttl_s(metadata, own.get("ttl")))


def checked_id(id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= ID_CHARACTERS_MAX or any(sign in id for sign in "/\\?#"):
        raise Misconfigured(
            f"A document's id must be text of 1 to {ID_CHARACTERS_MAX} characters without / \\ ? and #, "
            f"not {id!r:.100}."
        )
    return id


def _ttl_s(metadata: ContainerMetadata, own: object) -> int | None:
    if own is not None and (not isinstance(own, int) or isinstance(own, bool) or own == 0 or own < TTL_ONLY_OWN):
        raise Misconfigured(f"A document's ttl must be a whole number of seconds above zero, or -1, not {own!r}.")
    ttl_s = metadata.default_ttl_s if own is None else own
    return None if metadata.default_ttl_s is None or ttl_s == TTL_ONLY_OWN else ttl_s


def put(draft: DocumentDraft, mode: WriteMode, if_match: str | None) -> Callable[[WriteTransaction], WriteResult]:
    """An operation that writes a document."""

    def operation(transaction: WriteTransaction) -> WriteResult:
        before = _before(transaction, draft.epk, draft.id)
        if mode == "create" and before is not None:
            raise DocumentExists(f"A document {draft.id!r} with this partition key already exists.")
        if mode == "replace" or (before is not None and if_match is not None):
            before = _expected(before, draft.id, if_match)
        return _change(transaction, draft, before)

    return operation


def delete(epk: str, id: str, if_match: str | None) -> Callable[[WriteTransaction], WriteResult]:
    """An operation that deletes a document and returns it."""

    def operation(transaction: WriteTransaction) -> WriteResult:
        before = _expected(_before(transaction, epk, id), id, if_match)
        lsn = _remove(transaction, before, epk, expired=False)
        return WriteResult(body=before.body, etag=before.etag, lsn=lsn, range=str(before.range))

    return operation


def live(connection: apsw.Connection, epk: str, id: str, now_us: int) -> StoredDocument | None:
    """The document, unless it has expired."""
    found = _stored(connection, epk, id)
    return None if found is None or found.is_expired(now_us) else found


def _before(transaction: WriteTransaction, epk: str, id: str) -> StoredDocument | None:
    """Like `live`, for a write: an expired document is deleted first, as a change of its own."""
    found = _stored(transaction.connection, epk, id)
    if found is not None and found.is_expired(transaction.now_us):
        _remove(transaction, found, epk, expired=True)
        return None
    return found


def _stored(connection: apsw.Connection, epk: str, id: str) -> StoredDocument | None:
    row = connection.execute(
        "SELECT number, range, lsn, etag, body, expires_s FROM documents WHERE epk = ? AND id = ?", (epk, id)
    ).fetchone()
    return None if row is None else StoredDocument(*row)


def missing(id: str) -> DocumentMissing:
    return DocumentMissing(f"There is no document {id!r} with this partition key.")


def _expected(before: StoredDocument | None, id: str, if_match: str | None) -> StoredDocument:
    if before is None:
        raise missing(id)
    if if_match not in (None, "*", before.etag):
        raise DocumentChanged(f"The document {id!r} has the ETag {before.etag}, not {if_match}. Read it again.")
    return before


def _change(transaction: WriteTransaction, draft: DocumentDraft, before: StoredDocument | None) -> WriteResult:
    place = before.range if before is not None else _range_of(transaction.connection, draft.epk)
    lsn = _next_lsn(transaction, place)
    now_s = transaction.now_us // MICROSECONDS
    etag = f'"{token_hex(4)}-0000-0000-0000-{token_hex(6)}"'
    expires_s = None if draft.ttl_s is None else now_s + draft.ttl_s
    number = before.number if before is not None else _next_number(transaction.connection)
    body = draft.own + _system_properties(transaction.metadata, number, etag, now_s)
    transaction.connection.execute(
        "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, place, lsn, draft.epk, draft.id, etag, transaction.now_us, expires_s, body),
    )
    _log_change(
        transaction, place, lsn, draft.epk, "replace" if before is not None else "create", body=body, before=before
    )
    return WriteResult(body=body, etag=etag, lsn=lsn, range=str(place), is_new=before is None)


def _remove(transaction: WriteTransaction, before: StoredDocument, epk: str, *, expired: bool) -> int:
    lsn = _next_lsn(transaction, before.range)
    transaction.connection.execute("DELETE FROM documents WHERE number = ?", (before.number,))
    _log_change(transaction, before.range, lsn, epk, "delete", before=before, expired=expired)
    return lsn


def _log_change(
    transaction: WriteTransaction,
    place: int,
    lsn: int,
    epk: str,
    kind: Kind,
    *,
    before: StoredDocument | None,
    body: bytes | None = None,
    expired: bool = False,
) -> None:
    if transaction.metadata.retention_s == 0:
        return
    previous = (None, None) if before is None else (before.lsn, before.body)
    transaction.connection.execute(
        "INSERT INTO changes (range, lsn, epk, kind, expired, changed_us, previous_lsn, previous, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (place, lsn, epk, kind, expired, transaction.now_us, *previous, body),
    )


def _range_of(connection: apsw.Connection, epk: str) -> int:
    (found,) = one_row(
        connection, "SELECT id FROM ranges WHERE NOT gone AND min <= ? ORDER BY min DESC LIMIT 1", (epk,)
    )
    return int(found)


def _next_lsn(transaction: WriteTransaction, place: int) -> int:
    transaction.slots_to_ring.add(slot_of(place))
    (lsn,) = one_row(transaction.connection, "UPDATE ranges SET lsn = lsn + 1 WHERE id = ? RETURNING lsn", (place,))
    return int(lsn)


def _next_number(connection: apsw.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    return 1 if row is None else int(row[0]) + 1


def _system_properties(metadata: ContainerMetadata, number: int, etag: str, now_s: int) -> bytes:
    rid = b64encode(metadata.rid + number.to_bytes(8, "little"), b"+-").decode()
    database = b64encode(metadata.rid[:4], b"+-").decode()
    own = f"dbs/{database}/colls/{metadata.rid_text}/docs/{rid}/"
    tag = etag.strip('"')
    return (
        f',"_rid":"{rid}","_self":"{own}","_etag":"\\"{tag}\\"","_attachments":"attachments/","_ts":{now_s}}}'
    ).encode()


def number_of(metadata: ContainerMetadata, rid: str) -> int:
    """The number of a document, from its `_rid`; 0 if the `_rid` belongs to another container."""
    try:
        found = b64decode(rid, b"+-", validate=True)
    except ValueError:
        return 0
    is_ours = len(found) == len(metadata.rid) + 8 and found.startswith(metadata.rid) and found[-1] < 0x80
    return int.from_bytes(found[len(metadata.rid) :], "little") if is_ours else 0


def expire(transaction: WriteTransaction) -> int:
    """Delete some of the expired documents, each as a change of its own, and return their number."""
    rows = all_rows(
        transaction.connection,
        "SELECT number, range, lsn, etag, body, expires_s, epk FROM documents WHERE expires_s <= ? "
        "ORDER BY expires_s LIMIT ?",
        (transaction.now_us // MICROSECONDS, EXPIRE_AT_ONCE),
    )
    for *fields, epk in rows:
        _remove(transaction, StoredDocument(*fields), epk, expired=True)
    return len(rows)


def trim(transaction: WriteTransaction) -> int:
    """Remove some changes that retention no longer keeps from the log, and return their number."""
    if not transaction.metadata.retention_us:
        return 0
    rows = all_rows(
        transaction.connection,
        "SELECT number, range, lsn, epk, changed_us FROM changes ORDER BY number LIMIT ?",
        (TRIM_AT_ONCE,),
    )
    old = [row for row in rows if row[4] < transaction.now_us - transaction.metadata.retention_us]
    for number, place, lsn, epk, _ in old:
        transaction.connection.execute("DELETE FROM changes WHERE number = ?", (number,))
        transaction.connection.execute(
            "UPDATE floors SET lsn = max(lsn, ?) WHERE range = ? AND min <= ? AND ? < max", (lsn, place, epk, epk)
        )
    return len(old)
