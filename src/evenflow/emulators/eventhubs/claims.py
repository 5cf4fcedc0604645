"""Authorization: shared access signatures that clients put to `$cbs`, and what they grant to a connection.

Without a key, every client may do everything, and tokens are not verify_token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from evenflow.amqp.conditions import AUTH_FAILED, AmqpError
from evenflow.embedded.hub.clock import wall_us
from evenflow.emulators.eventhubs.addresses import Path, covers, parse_path
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

SAS = "servicebus.windows.net:sastoken"
GRANTS_MAX = 1_000
_PREFIX = "SharedAccessSignature "


class ConnectionClaims:
    """The grants of one connection."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys
        self._granted: dict[Path, float] = {}

    def put(self, token: object, kind: object, audience: str) -> None:
        """Add a token's grant. Raises `AmqpError` if the token is invalid."""
        if not self._keys:
            return
        if not isinstance(token, str) or kind != SAS:
            raise AmqpError(AUTH_FAILED, "This server supports shared access signatures only, no other tokens.")
        path, expires_s = verify_token(token, self._keys)
        if len(self._granted) >= GRANTS_MAX:
            self._granted = {granted: end for granted, end in self._granted.items() if end > now_s()}
        if len(self._granted) >= GRANTS_MAX:
            raise AmqpError(AUTH_FAILED, f"This connection holds the maximum of {GRANTS_MAX} valid tokens.")
        if not covers(path, parse_path(audience)):
            raise AmqpError(AUTH_FAILED, "InvalidAudience: The token is not for the resource that it was put for.")
        self._granted[path] = expires_s

    def until_s(self, *paths: Path) -> float:
        """When the grant for one of these paths expires, on the wall clock; zero if there is none."""
        if not self._keys:
            return math.inf
        ends = [end for granted, end in self._granted.items() if any(covers(granted, path) for path in paths)]
        latest = max(ends, default=0.0)
        return latest if latest > now_s() else 0.0


def now_s() -> float:
    return wall_us() / MICROSECONDS


def verify_token(token: str, keys: Mapping[str, str]) -> tuple[Path, float]:
    """Verify a token; returns the path that it grants and its expiry."""
    fields = dict(part.partition("=")[::2] for part in token.removeprefix(_PREFIX).split("&"))
    if not token.startswith(_PREFIX) or not {"sr", "sig", "se", "skn"} <= fields.keys():
        raise AmqpError(AUTH_FAILED, "MalformedToken: The token is not a shared access signature.")
    key = keys.get(unquote_plus(fields["skn"]))
    signed = f"{fields['sr']}\n{fields['se']}".encode()
    right = base64.b64encode(hmac.digest((key or "").encode(), signed, hashlib.sha256)).decode()
    if key is None or not hmac.compare_digest(right.encode(), unquote_plus(fields["sig"]).encode()):
        raise AmqpError(AUTH_FAILED, "InvalidSignature: The token has an invalid signature.")
    try:
        expires_s = float(fields["se"])
    except ValueError:
        raise AmqpError(AUTH_FAILED, "MalformedToken: The token's expiry is not a number.") from None
    if not expires_s > now_s():
        raise AmqpError(AUTH_FAILED, "ExpiredToken: The token is expired.")
    return parse_path(unquote_plus(fields["sr"])), expires_s
