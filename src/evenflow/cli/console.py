"""`evenflow console`: the operator console in a browser, for one group or for all groups of a store."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from evenflow.cli.output import say
from evenflow.cli.which import (
    DeadLettersUrl,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    in_its_mode,
    opened_store,
    which,
)
from evenflow.errors import EvenflowError, Transient
from evenflow.operate.inspect.survey import find_group, operable
from evenflow.runtime.clock import system_clock
from evenflow.urls import open_dead_letters

if TYPE_CHECKING:
    from socket import socket

    from evenflow.cli.which import Chosen
    from evenflow.console import ConsoleAccess
    from evenflow.model import Group
    from evenflow.ports import DeadLetters, Source, Store

PORT = 8642
TOKEN = "EVENFLOW_CONSOLE_TOKEN"
TOKEN_LEAST = 12


def console(
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="PORT", help="0 takes any free one.")] = PORT,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", envvar=TOKEN, help="Ask for this token. Better kept in the environment."),
    ] = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Pause, resume, seek, retire and redrive from the page.")
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="How often to look, while a page is open.")
    ] = 1.0,
    unseen_every: Annotated[
        float, typer.Option(min=0.2, metavar="SECONDS", help="How often to look while none is.")
    ] = 60.0,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    dead_letters: DeadLettersUrl = None,
    profile: ProfileName = None,
) -> None:
    """Serve the console: who owns what, since when and why, lag, moves, dead letters, live. Ctrl-C ends it.

    It serves this machine alone, and only looks, unless told otherwise.
    """
    from evenflow.console import LOOPBACK_NAMES, ConsoleAccess, is_loopback
    from evenflow.console.serving import address_of, bound

    chosen = which(store, source, group, profile, dead_letters)
    inside = is_loopback(host)
    if token is not None and len(token) < TOKEN_LEAST:
        raise typer.BadParameter(f"a token has at least {TOKEN_LEAST} characters.", param_hint="--token")
    if not inside and token is None:
        raise typer.BadParameter(
            f"beyond this machine a token is asked for: give a --token, or set {TOKEN}.", param_hint="--host"
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
    # In a fragment it reaches the page, but no server and no log.
    opening = f"{address}#token={quote(made)}" if made is not None else address
    with suppress(KeyboardInterrupt), taken:
        paces = (every, unseen_every)
        asyncio.run(_serve(chosen, access, taken, paces, _Ready(opening, open_browser=not no_open)))


class _Ready:
    """Tells where it is, once it is there."""

    def __init__(self, address: str, *, open_browser: bool) -> None:
        self._address, self._open_browser = address, open_browser

    def __call__(self) -> None:
        print(self._address, flush=True)
        say("the console is there; Ctrl-C ends it")
        if self._open_browser:
            from evenflow.console.serving import open_browser

            open_browser(self._address)


class _Target:
    """Dead letters, opened when they are first asked for: there may be none yet."""

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
    chosen: Chosen, access: ConsoleAccess, taken: socket, paces: tuple[float, float], ready: _Ready
) -> None:
    from evenflow.console import Console, Subject, serve

    target = _Target(chosen.dead_letters) if chosen.dead_letters is not None else None
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


async def _group(chosen: Chosen, store: Store, source: Source | None) -> Group | None:
    """The only one that is shown, if it is there already: of several, each may read in another mode."""
    with suppress(EvenflowError):
        return await find_group(store, chosen.group, source) if chosen.group is not None else None
    return None


async def _check(store: Store) -> None:
    """A store that is not there is a mistake to be told at once; one that does not answer may come back."""
    with suppress(Transient):
        await operable(store).groups()
