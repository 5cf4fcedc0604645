"""Requests for one document: create, upsert, read, replace, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.embedded.container.keys import MISSING
from evenflow.emulators.cosmos import charges
from evenflow.emulators.cosmos.http import (
    CHARGE,
    KEY_MISMATCH,
    PARTITION_KEY,
    SESSION,
    CosmosError,
    CosmosRequest,
    CosmosResponse,
    unsupported,
)
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from evenflow.embedded.container import Container
    from evenflow.embedded.container.documents import WriteMode, WriteResult
    from evenflow.embedded.container.keys import KeyPart


def create(container: Container, request: CosmosRequest) -> CosmosResponse:
    _check_condition(request)
    document = _document(container, request)
    mode: WriteMode = "upsert" if request.flag("x-ms-documentdb-is-upsert") else "create"
    written = container.documents.put(document, mode, request.headers.get("if-match"))
    return _write_response(request, written)


def read(container: Container, request: CosmosRequest) -> CosmosResponse:
    found = container.documents.get(_id(container, request), _key(container, request))
    headers = _headers(found, charges.point_read(len(found.body)))
    if request.headers.get("if-none-match") in (found.etag, "*"):
        return CosmosResponse(status=304, headers=headers)
    return CosmosResponse(body=found.body, headers=headers)


def replace(container: Container, request: CosmosRequest) -> CosmosResponse:
    _check_condition(request)
    document = _document(container, request)
    if document.get("id") != _id(container, request):
        raise CosmosError(400, "The id in the body differs from the id in the address, and an id cannot change.")
    return _write_response(request, container.documents.put(document, "replace", request.headers.get("if-match")))


def delete(container: Container, request: CosmosRequest) -> CosmosResponse:
    _check_condition(request)
    gone = container.documents.remove(
        _id(container, request), _key(container, request), request.headers.get("if-match")
    )
    return CosmosResponse(status=204, headers=_headers(gone, charges.delete(len(gone.body)), etag=False))


def _check_condition(request: CosmosRequest) -> None:
    """Refuse a condition that is not supported, rather than write despite it."""
    if "if-none-match" in request.headers:
        raise unsupported("If-None-Match for writes: create a document that must not exist, or use If-Match")


def key_of(request: CosmosRequest) -> tuple[KeyPart, ...] | None:
    """The partition key in a request's header; None if there is none."""
    text = request.headers.get(PARTITION_KEY)
    if text is None:
        return None
    try:
        parts = msgspec.json.decode(text, type=list[Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CosmosError(400, f"{PARTITION_KEY} must be a JSON array: {error}.") from error
    # Clients write a missing value as an empty object; older ones as an empty list.
    return tuple([MISSING if part == {} else part for part in parts]) or (MISSING,)


def session_of(range_id: str, lsn: int) -> str:
    return f"{range_id}:-1#{lsn}"


def _id(container: Container, request: CosmosRequest) -> str:
    """The document's id. An address consists either of ids or of `_rid`s."""
    last = request.steps[-1]
    return container.documents.id_of(last) if request.steps[3] == container.opened().metadata.rid_text else last


def _key(container: Container, request: CosmosRequest) -> tuple[KeyPart, ...]:
    key = key_of(request)
    if key is None:
        raise CosmosError(
            400, f"The header {PARTITION_KEY} is missing. A document is identified by its id and its partition key."
        )
    return container.opened().metadata.keys.parts(key)


def _document(container: Container, request: CosmosRequest) -> dict[str, Any]:
    document = request.json()
    if not isinstance(document, dict):
        raise CosmosError(400, "A document must be a JSON object.")
    keys = container.opened().metadata.keys
    named = key_of(request)
    try:
        differs = named is not None and keys.epk(keys.parts(named)) != keys.epk(keys.of(document))
    except Misconfigured as error:
        raise CosmosError(400, str(error), KEY_MISMATCH) from error
    if differs:
        raise CosmosError(400, "The partition key in the header differs from the document's.", KEY_MISMATCH)
    return document


def _write_response(request: CosmosRequest, written: WriteResult) -> CosmosResponse:
    charge = charges.write(len(written.body), is_new=written.is_new)
    minimal = "return=minimal" in request.headers.get("prefer", "").lower()
    return CosmosResponse(
        status=201 if written.is_new else 200,
        body=b"" if minimal else written.body,
        headers=_headers(written, charge),
    )


def _headers(written: WriteResult, charge: float, *, etag: bool = True) -> dict[str, str]:
    headers = {CHARGE: f"{charge:.2f}", SESSION: session_of(written.range, written.lsn)}
    return headers | {"etag": written.etag} if etag else headers
