"""The ASGI application: reads requests, routes them, runs them on threads, and turns errors into responses."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes
from uuid import uuid4

from msgspec.structs import replace

from evenflow.embedded.container.clock import wall_us as system_wall_us
from evenflow.embedded.container.metadata import metadata_path
from evenflow.emulators.cosmos import account as accounts
from evenflow.emulators.cosmos import feeds, items, queries
from evenflow.emulators.cosmos.account import DEFAULT_RANGES, CosmosAccount
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY, KeyAuthorization
from evenflow.emulators.cosmos.faults import NO_FAULTS, CosmosFaultOptions, CosmosFaults
from evenflow.emulators.cosmos.http import (
    ACTIVITY,
    CHARGE,
    INTENDED_RID,
    ITEM_COUNT,
    OWNER_MISSING,
    RANGE_GONE,
    RID_MISMATCH,
    CosmosError,
    CosmosRequest,
    CosmosResponse,
    json_answer,
    unsupported,
)
from evenflow.errors import (
    DocumentChanged,
    DocumentExists,
    DocumentMissing,
    EvenflowError,
    Misconfigured,
    PositionOutOfRange,
    RangeGone,
    StorageFull,
    Transient,
    Unsupported,
)
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from pathlib import Path

    from evenflow.embedded.container import Container

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_BYTES_MAX = 2 * 1024 * 1024 + 64 * 1024
"""A document of 2 MB, plus what a client adds."""
THREADS = 16
SERVICE_VERSION = "2020-07-15"
_UNSUPPORTED = {
    "sprocs": "stored procedures",
    "triggers": "triggers",
    "udfs": "user-defined functions",
    "users": "users",
    "permissions": "permissions",
    "conflicts": "conflicts",
    "attachments": "attachments",
    "offers": "throughput settings: it uses all of this machine (limit it with --fault throttle=)",
}
"""Resource types of the service that this emulator does not support."""
_TRIGGERS = ("x-ms-documentdb-pre-trigger-include", "x-ms-documentdb-post-trigger-include")
_STATUS: tuple[tuple[type[EvenflowError], int, int], ...] = (
    (Unsupported, 501, 0),
    (DocumentMissing, 404, 0),
    (DocumentExists, 409, 0),
    (DocumentChanged, 412, 0),
    (RangeGone, 410, RANGE_GONE),
    (PositionOutOfRange, 400, 0),
    (Misconfigured, 400, 0),
    (StorageFull, 507, 0),
    (Transient, 503, 0),
)


class CosmosApp:
    """An ASGI application that serves a folder of databases. It closes what it opened."""

    def __init__(
        self,
        folder: Path,
        *,
        key: str = EMULATOR_KEY,
        ranges: int = DEFAULT_RANGES,
        allow_admin: bool = False,
        faults: CosmosFaultOptions = NO_FAULTS,
        wall_us: Callable[[], int] = system_wall_us,
    ) -> None:
        self.account = CosmosAccount(folder, wall_us, ranges)
        self._access = KeyAuthorization(key, wall_us)
        self._allow_admin = allow_admin
        self._faults = CosmosFaults(faults)
        self._wall_us = wall_us
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="evenflow-cosmos")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._respond(scope, receive)
        except CosmosError as refusal:
            answer = refusal.answer()
        except EvenflowError as error:
            answer = _error_of(error).answer()
        await _send(send, answer, self._common_headers(scope))

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self.account.close()

    async def _respond(self, scope: Scope, receive: Receive) -> CosmosResponse:
        request = _request_without_body(scope)
        if request.steps == ("health",):
            return await self._on_thread(self._health, request)
        self._access.check(request)
        if _is_about_documents(request):
            await self._faults.before()
        body = await _body(request, receive)
        answer = await self._on_thread(self._answer, replace(request, body=body))
        self._faults.spent(float(answer.headers.get(CHARGE, 0)))
        return answer

    async def _on_thread(
        self, call: Callable[[CosmosRequest], CosmosResponse], request: CosmosRequest
    ) -> CosmosResponse:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, request)

    # Routes

    def _answer(self, request: CosmosRequest) -> CosmosResponse:
        match request.method, request.steps:
            case "GET", ():
                return self._account(request)
            case _, ("dbs", *_):
                return self._route_databases(request)
            case _, (kind, *_) if kind in _UNSUPPORTED:
                raise unsupported(_UNSUPPORTED[kind])
        raise CosmosError(404, "There is no resource at this address.")

    def _route_databases(self, request: CosmosRequest) -> CosmosResponse:
        match request.method, request.steps[1:]:
            case "POST", ():
                if _is_query(request):
                    raise unsupported("queries of databases; list them")
                return json_answer(self.account.create_database(_id_of(request)).resource(), 201)
            case "GET", ():
                return _listed("Databases", [one.resource() for one in self.account.databases()])
            case "GET", (database,):
                return json_answer(self.account.database(database).resource())
            case "DELETE", (database,):
                self.account.delete_database(database)
                return CosmosResponse(status=204)
            case _, (database, "colls", *_):
                return self._route_containers(request, database)
            case _, (_, kind, *_) if kind in _UNSUPPORTED:
                raise unsupported(_UNSUPPORTED[kind])
        raise CosmosError(405, f"{request.method} is not supported at this address.")

    def _route_containers(self, request: CosmosRequest, database: str) -> CosmosResponse:
        match request.method, request.steps[3:]:
            case "POST", ():
                if _is_query(request):
                    raise unsupported("queries of containers; list them")
                wanted = request.json()
                if not isinstance(wanted, dict):
                    raise CosmosError(400, "A container must be described by a JSON object.")
                return _container_response(self.account.create_container(database, wanted), 201)
            case "GET", ():
                found = self.account.containers(database)
                return _listed("DocumentCollections", [accounts.container_resource(one) for one in found])
            case "GET", (id,):
                return _container_response(self.account.container(database, id))
            case "DELETE", (id,):
                self.account.delete_container(database, id)
                return CosmosResponse(status=204)
            case "PUT", (id,):
                raise unsupported("changes of a container's settings; create another container")
            case _, (id, ("docs" | "pkranges"), *_):
                return self._route_contents(request, self._checked_container(request, database, id))
            case _, (_, kind, *_) if kind in _UNSUPPORTED:
                raise unsupported(_UNSUPPORTED[kind])
            case _, (_, "operations", *_):
                raise unsupported("deletes of all documents with a partition key; delete them one by one")
        raise CosmosError(405, f"{request.method} is not supported at this address.")

    def _route_contents(self, request: CosmosRequest, container: Container) -> CosmosResponse:
        try:
            if _is_about_documents(request):
                return self._route_documents(request, container)
            return self._route_ranges(request, container)
        except (Misconfigured, Transient):
            if metadata_path(container.path).exists():
                raise
            # The container was deleted during this request.
            raise CosmosError(404, f"The container {request.steps[3]!r} was deleted.", OWNER_MISSING) from None

    def _route_documents(self, request: CosmosRequest, container: Container) -> CosmosResponse:
        if any(name in request.headers for name in _TRIGGERS):
            raise unsupported(_UNSUPPORTED["triggers"])
        match request.method, request.steps[5:]:
            case "POST", ():
                if request.flag("x-ms-cosmos-is-batch-request"):
                    raise unsupported("batches; write documents one by one")
                if request.flag("x-ms-cosmos-is-query-plan-request"):
                    return queries.plan(container, request)
                if _is_query(request):
                    return queries.query(container, request)
                return items.create(container, request)
            case "GET", ():
                is_feed = feeds.FEED_HEADER in request.headers
                return feeds.changes(container, request) if is_feed else queries.read_all(container, request)
            case "GET", (_,):
                return items.read(container, request)
            case "PUT", (_,):
                return items.replace(container, request)
            case "DELETE", (_,):
                return items.delete(container, request)
            case "PATCH", (_,):
                raise unsupported("patches of documents; replace them")
        raise CosmosError(405, f"{request.method} is not supported at this address.")

    def _route_ranges(self, request: CosmosRequest, container: Container) -> CosmosResponse:
        match request.method, request.steps[5:]:
            case "GET", ():
                return feeds.pkranges(container, request)
            case "POST", (_, ("split" | "merge") as what):
                if not self._allow_admin:
                    raise CosmosError(403, "Splits and merges are disabled. Start the server with --allow-admin.")
                return feeds.split(container, request) if what == "split" else feeds.merge(container, request)
        raise CosmosError(405, f"{request.method} is not supported at this address.")

    def _checked_container(self, request: CosmosRequest, database: str, id: str) -> Container:
        """The container. Refuses a client that knows an earlier container with the same name."""
        container = self.account.container(database, id, OWNER_MISSING)
        wanted = request.headers.get(INTENDED_RID)
        if wanted is not None and wanted != container.opened().metadata.rid_text:
            raise CosmosError(400, f"The container {id!r} was deleted and created again. Read it again.", RID_MISMATCH)
        return container

    def _account(self, request: CosmosRequest) -> CosmosResponse:
        here = [{"name": "local", "databaseAccountEndpoint": f"{request.origin}/"}]
        return json_answer(
            {
                "_self": "",
                "id": "local",
                "_rid": "local",
                "media": "//media/",
                "addresses": "//addresses/",
                "_dbs": "//dbs/",
                "writableLocations": here,
                "readableLocations": here,
                "enableMultipleWriteLocations": False,
                "userReplicationPolicy": {"asyncReplication": False, "minReplicaSetSize": 1, "maxReplicasetSize": 1},
                "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
                "systemReplicationPolicy": {"minReplicaSetSize": 1, "maxReplicasetSize": 1},
                "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
                "queryEngineConfiguration": "{}",
            }
        )

    def _health(self, request: CosmosRequest) -> CosmosResponse:
        found = {
            one.id: [c.opened().metadata.name for c in self.account.containers(one.id)]
            for one in self.account.databases()
        }
        return json_answer({"status": "ready", "databases": found})

    def _common_headers(self, scope: Scope) -> dict[str, str]:
        """The headers of every response."""
        asked = next((value.decode("latin-1") for name, value in scope["headers"] if name == ACTIVITY.encode()), "")
        return {
            ACTIVITY: asked[:64] if asked[:64].isprintable() and asked else str(uuid4()),
            "x-ms-serviceversion": "evenflow",
            "x-ms-version": SERVICE_VERSION,
            "x-ms-gatewayversion": "evenflow",
            "date": formatdate(self._wall_us() / MICROSECONDS, usegmt=True),
            "content-type": "application/json",
            "cache-control": "no-store",
        }


def _request_without_body(scope: Scope) -> CosmosRequest:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    raw = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0].strip(b"/")
    steps = tuple([unquote_to_bytes(part).decode(errors="replace") for part in raw.split(b"/")]) if raw else ()
    return CosmosRequest(
        method=scope["method"],
        steps=steps,
        path=raw.decode("latin-1"),
        headers=headers,
        body=b"",
        origin=f"{scope['scheme']}://{headers.get('host', 'localhost')}",
    )


async def _body(request: CosmosRequest, receive: Receive) -> bytes:
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and len(said) < 20 and int(said) > BODY_BYTES_MAX:
        raise _too_large()
    pieces, size_bytes = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise CosmosError(400, "The connection closed before the end of the body.")
        pieces.append(message.get("body", b""))
        size_bytes += len(pieces[-1])
        if size_bytes > BODY_BYTES_MAX:
            raise _too_large()
        if not message.get("more_body"):
            return b"".join(pieces)


def _too_large() -> CosmosError:
    return CosmosError(413, f"The request is too large: at most {BODY_BYTES_MAX:,} bytes, and 2 MB for a document.")


async def _send(send: Send, answer: CosmosResponse, common: dict[str, str]) -> None:
    headers = common | {CHARGE: "0"} | answer.headers
    if answer.status not in (204, 304):
        headers["content-length"] = str(len(answer.body))
    raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if answer.status in (204, 304) else answer.body})


def _error_of(error: EvenflowError) -> CosmosError:
    for kind, status, substatus in _STATUS:
        if isinstance(error, kind):
            return CosmosError(status, str(error), substatus)
    return CosmosError(500, str(error))


def _is_query(request: CosmosRequest) -> bool:
    is_query = request.flag("x-ms-documentdb-isquery")
    return is_query or request.headers.get("content-type", "").startswith("application/query+json")


def _is_about_documents(request: CosmosRequest) -> bool:
    return len(request.steps) > 4 and request.steps[4] == "docs"


def _container_response(container: Container, status: int = 200) -> CosmosResponse:
    """A container as a response. Java's client builds document addresses from its owner headers."""
    answer = json_answer(accounts.container_resource(container), status)
    answer.headers |= accounts.owner_of(container)
    return answer


def _id_of(request: CosmosRequest) -> Any:
    wanted = request.json()
    return wanted.get("id") if isinstance(wanted, dict) else None


def _listed(name: str, found: list[dict[str, Any]]) -> CosmosResponse:
    answer = json_answer({"_rid": "", name: found, "_count": len(found)})
    answer.headers[ITEM_COUNT] = str(len(found))
    return answer
