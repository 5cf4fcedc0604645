"""Authorizes requests that are signed with the account key, as clients of Azure Cosmos DB sign them.

Signatures are compared in constant time, and requests older than 15 minutes are refused. Requests on loopback must be
signed as well, with the emulator's public key by default, so that a web page in a browser cannot send requests.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from evenflow.emulators.cosmos.http import CosmosError, CosmosRequest
from evenflow.errors import Misconfigured
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

EMULATOR_KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
"""The key of Microsoft's emulator. It is not secret: Microsoft's documentation publishes it."""
SKEW_S = 15 * 60


class KeyAuthorization:
    def __init__(self, key: str, wall_us: Callable[[], int]) -> None:
        try:
            self._key = b64decode(key, validate=True)
        except ValueError as error:
            raise Misconfigured("The key is not valid base64. Give a key in the format of Azure Cosmos DB.") from error
        self._wall_us = wall_us

    def __repr__(self) -> str:
        return "KeyAuthorization(...)"

    def check(self, request: CosmosRequest) -> None:
        """Refuse a request that is not signed with the key."""
        given = dict(parse_qsl(unquote(request.headers.get("authorization", "")).replace("+", "%2B")))
        if given.get("type", "master") != "master":
            raise CosmosError(401, "The local Cosmos DB supports only the account key, no other kinds of tokens.")
        date = request.headers.get("x-ms-date", "")
        signature = given.get("sig", "").encode()
        if not any(hmac.compare_digest(signature, wanted) for wanted in self._signatures(request, date)):
            raise CosmosError(
                401,
                "The signature does not match this request and the key of this server. Check the client's key.",
            )
        self._check_date(date)

    def _check_date(self, date: str) -> None:
        try:
            said_s = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            raise CosmosError(401, "The header x-ms-date is missing or not a date.") from None
        if abs(said_s - self._wall_us() / MICROSECONDS) > SKEW_S:
            raise CosmosError(
                403,
                "The request's date is more than 15 minutes off. Check both clocks.",
            )

    def _signatures(self, request: CosmosRequest, date: str) -> list[bytes]:
        """The accepted signatures: clients sign names encoded or decoded, and resource ids in lower case."""
        kind, link = _signed(request.steps)
        _, sent = _signed(tuple(request.path.split("/")) if request.path else ())
        links = {link, sent, link.rpartition("/")[2].lower()}
        return [self._signature(request.method, kind, one, date) for one in links]

    def _signature(self, method: str, kind: str, link: str, date: str) -> bytes:
        text = f"{method.lower()}\n{kind}\n{link}\n{date.lower()}\n\n"
        return b64encode(hmac.new(self._key, text.encode(), sha256).digest())


def _signed(steps: tuple[str, ...]) -> tuple[str, str]:
    """The type of the resource, and the link of the resource or, for a list, of its parent."""
    if not steps:
        return "", ""
    if len(steps) == 7 and steps[4] == "pkranges":
        # Operations on a range are signed as the range itself.
        steps = steps[:-1]
    if len(steps) == 6 and steps[4] == "operations":
        # Operations on all documents with a partition key are signed as their container.
        steps = steps[:4]
    if len(steps) % 2:
        return steps[-1].lower(), "/".join(steps[:-1])
    return steps[-2].lower(), "/".join(steps)
