"""HTTP requests, responses and errors of the REST API, and the names of its headers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

PAGE_SIZE = "x-ms-max-item-count"
CONTINUATION = "x-ms-continuation"
CHARGE = "x-ms-request-charge"
SUBSTATUS = "x-ms-substatus"
SESSION = "x-ms-session-token"
ITEM_COUNT = "x-ms-item-count"
ACTIVITY = "x-ms-activity-id"
RETRY_AFTER = "x-ms-retry-after-ms"
PARTITION_KEY = "x-ms-documentdb-partitionkey"
RANGE_ID = "x-ms-documentdb-partitionkeyrangeid"
INTENDED_RID = "x-ms-cosmos-intended-collection-rid"
OWNER_NAME, OWNER_RID = "x-ms-alt-content-path", "x-ms-content-path"
START_EPK, END_EPK = "x-ms-start-epk", "x-ms-end-epk"

RANGE_GONE = 1002
OWNER_MISSING = 1003
KEY_MISMATCH = 1001
RID_MISMATCH = 1024

_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    500: "InternalServerError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}


class CosmosRequest(Struct, frozen=True, kw_only=True):
    method: str
    steps: tuple[str, ...]
    """The segments of the path, percent-decoded."""
    path: str
    """The path as it was sent, without leading and trailing slashes."""
    headers: dict[str, str]
    body: bytes
    origin: str
    """The scheme, host and port under which the client reached this server."""

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CosmosError(400, f"The body is not valid JSON: {error}.") from error

    def flag(self, name: str) -> bool:
        return self.headers.get(name, "").lower() == "true"


class CosmosResponse(Struct, kw_only=True):
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}


class CosmosError(Exception):
    """An error response, with a message that says why."""

    def __init__(self, status: int, why: str, substatus: int = 0, **headers: str) -> None:
        super().__init__(why)
        self.status = status
        self.substatus = substatus
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(self) -> CosmosResponse:
        headers = dict(self.headers)
        if self.substatus:
            headers[SUBSTATUS] = str(self.substatus)
        body = {"code": _CODES.get(self.status, "Error"), "message": str(self)}
        return CosmosResponse(status=self.status, body=msgspec.json.encode(body), headers=headers)


def unsupported(what: str) -> CosmosError:
    return CosmosError(501, f"The local Cosmos DB does not support {what}.")


def json_answer(value: Any, status: int = 200, **headers: str) -> CosmosResponse:
    renamed = {name.replace("_", "-"): text for name, text in headers.items()}
    return CosmosResponse(status=status, body=msgspec.json.encode(value), headers=renamed)


def count_of(request: CosmosRequest, most: int, default: int) -> int:
    """The page size that the client requests, within the limits."""
    text = request.headers.get(PAGE_SIZE, "-1").strip()
    if not text.removeprefix("-").isdecimal() or len(text) > 10:
        raise CosmosError(400, f"{PAGE_SIZE} must be a whole number, not {text!r:.40}.")
    number = int(text)
    return default if number < 1 else min(number, most)
