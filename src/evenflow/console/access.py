"""Access control: the token, the host names of this server, and the security headers for browsers.

The token travels in a header that no other site can make a browser send, and is compared in constant time. On loopback
the host name is checked, because another site may let its own name resolve to this machine (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))
SCHEME = "Bearer "
READING = ("GET", "HEAD")
DATA = ("/api/", "/metrics")
"""Paths with data. The page itself contains none."""
SHELL_CACHE, DATA_CACHE = "no-cache", "no-store"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class ConsoleAccess(Struct, frozen=True, kw_only=True):
    """What clients need, and what they may do."""

    token: str | None = None
    reading_needs_token: bool = False
    allow_actions: bool = False
    hosts: frozenset[str] | None = None
    """The host names that a request may address; None: the server in front of this one checks them."""

    def __repr__(self) -> str:
        token = "..." if self.token is not None else None
        return f"ConsoleAccess(token={token}, allow_actions={self.allow_actions})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("allow_actions", self.allow_actions)]

    def knows(self, headers: Headers) -> bool:
        """Whether the request carries the token."""
        given = headers.get("authorization", "")
        if self.token is None or not given.startswith(SCHEME):
            return False
        return hmac.compare_digest(given.removeprefix(SCHEME).encode(), self.token.encode())

    def is_addressed(self, headers: Headers) -> bool:
        """Whether the request addresses one of our host names."""
        return self.hosts is None or _name(headers.get("host", "")) in self.hosts


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return f"{host.partition(']')[0]}]".lower()
    return host.partition(":")[0].lower()


def is_cross_site(headers: Headers) -> bool:
    """Whether the browser says that a page of another site sent the request."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


class AccessGuard:
    """ASGI middleware that refuses requests without access, and adds the security headers."""

    def __init__(self, app: ASGIApp, access: ConsoleAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_data = scope["path"].removeprefix(scope.get("root_path", "")).startswith(DATA)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers_out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers_out[name] = value
                headers_out["cache-control"] = DATA_CACHE if is_data else SHELL_CACHE
            await send(message)

        refusal = self._refusal(scope["method"], headers, is_data=is_data)
        answer = self._app if refusal is None else refusal
        await answer(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers, *, is_data: bool) -> JSONResponse | None:
        """The page itself contains no data: it loads without a token, and then asks for one."""
        access = self._access
        if not access.is_addressed(headers):
            return refused(421, "Unknown host name: open the console at the address that was printed at its start.")
        if not is_data:
            return None
        if method not in READING:
            return self._refuse_action(headers)
        if access.reading_needs_token and not access.knows(headers):
            return refused(401, "This console requires its token.")
        return None

    def _refuse_action(self, headers: Headers) -> JSONResponse | None:
        if not self._access.allow_actions:
            return refused(403, "This console is read-only. Start it with --allow-actions to allow actions.")
        if is_cross_site(headers):
            return refused(403, "This request came from a page of another site.")
        if not self._access.knows(headers):
            return refused(401, "Actions require the token.")
        if not headers.get("content-type", "").startswith("application/json"):
            return refused(415, "Actions must be sent as JSON.")
        return None


def refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status, {"www-authenticate": "Bearer"} if status == 401 else None)
