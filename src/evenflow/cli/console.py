"""`evenflow console`: serves the operator console for one group or all groups of a store."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from evenflow.cli.output import say
from evenflow.cli.selection import (
    DeadLettersUrl,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    in_its_mode,
    opened_store,
    select_group,
)
from evenflow.errors import EvenflowError, Transient
from evenflow.operate.inspect.survey import find_group, operable
from evenflow.runtime.clock import system_clock
from evenflow.urls import open_dead_letters

if TYPE_CHECKING:
    from socket import socket

    from evenflow.cli.selection import GroupSelection
    from evenflow.console import ConsoleAccess
    from evenflow.model import Group
    from evenflow.ports import DeadLetters, Source, Store

PORT = 8642
TOKEN = "EVENFLOW_CONSOLE_TOKEN"
TOKEN_LEAST = 12


def console(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on. Beyond loopback, a token is required.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="Port to listen on; 0 picks a free one.")
    ] = PORT,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", envvar=TOKEN, help="Require this token. Prefer the environment variable."),
    ] = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Allow pause, resume, seek, retire and redrive from the page.")
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="Refresh interval while a page is open.")
    ] = 1.0,
    unseen_every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="Refresh interval while no page is open.")
    ] = 60.0,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    dead_letters: DeadLettersUrl = None,
    profile: ProfileName = None,
) -> None:
    """Serve the operator console in a browser: owners, lag, moves and dead letters, live. Ctrl-C stops it.

    By default it listens on this machine only and is read-only.
    """
    from evenflow.console import LOOPBACK_NAMES, ConsoleAccess, is_loopback
    from evenflow.console.serving import address_of, bound

    chosen = select_group(store, source, group, profile, dead_letters)
    inside = is_loopback(host)
    if token is not None and len(token) < TOKEN_LEAST:
        raise typer.BadParameter(f"the token needs at least {TOKEN_LEAST} characters.", param_hint="--token")
    if not inside and token is None:
        raise typer.BadParameter(
            f"{host} can be reached from other machines, so a token is required: pass --token or set {TOKEN}.",
            param_hint="--host",
        )
    made = secrets.token_urlsafe(24) if allow_actions and token is None else None
    access = ConsoleAccess(
        token=token or made,
        reading_needs_token=not inside or token is not None,
        allow_actions=allow_actions,
        hosts=LOOPBACK_NAMES | {host} if inside else None,
    )
    taken = bound(host, port)
    address = address_of(taken, host)
    # A URL fragment reaches the page, but is never sent to a server or written to its log.
    opening = f"{address}#token={quote(made)}" if made is not None else address
    with suppress(KeyboardInterrupt), taken:
        paces = (every, unseen_every)
        asyncio.run(_serve(chosen, access, taken, paces, _ReadyAnnouncement(opening, open_browser=not no_open)))


class _ReadyAnnouncement:
    """Prints the address once the server listens, and opens a browser."""

    def __init__(self, address: str, *, open_browser: bool) -> None:
        self._address, self._open_browser = address, open_browser

    def __call__(self) -> None:
        print(self._address, flush=True)
        say("console running; press Ctrl-C to stop")
        if self._open_browser:
            from evenflow.console.serving import open_browser

            open_browser(self._address)


class _LazyDeadLetters:
    """Opens the dead-letter target at the first call: it may not exist when the console starts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._dead_letters: DeadLetters | None = None

    def __call__(self) -> DeadLetters:
        self._dead_letters = self._dead_letters or open_dead_letters(self._url, create=False)
        return self._dead_letters

    async def aclose(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.aclose()


async def _serve(
    chosen: GroupSelection, access: ConsoleAccess, taken: socket, paces: tuple[float, float], ready: _ReadyAnnouncement
) -> None:
    from evenflow.console import Console, Subject, serve

    target = _LazyDeadLetters(chosen.dead_letters) if chosen.dead_letters is not None else None
    async with opened_store(chosen) as (store, named):
        await _check(store)
        group = await _group(chosen, store, named)
        async with in_its_mode(chosen, store, named, group) as source:
            subject = Subject(store=store, source=source, dead_letters=target, group=chosen.group, hints=chosen.hints)
            try:
                every_s, unseen_every_s = paces
                console = Console(
                    subject, system_clock(), access=access, every_s=every_s, unseen_every_s=unseen_every_s
                )
                await serve(console, taken, ready)
            finally:
                if target is not None:
                    await target.aclose()


async def _group(chosen: GroupSelection, store: Store, source: Source | None) -> Group | None:
    """The selected group, if it exists already. Otherwise all groups are shown, and each may read in its own mode."""
    with suppress(EvenflowError):
        return await find_group(store, chosen.group, source) if chosen.group is not None else None
    return None


async def _check(store: Store) -> None:
    """Fail at once if the store does not exist. One that does not answer may become reachable later."""
    with suppress(Transient):
        await operable(store).groups()
