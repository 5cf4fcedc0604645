"""`evenflow table show`: shows the state of a change feed, and the transactions that block its readers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from evenflow.cli.output import columns, print_json
from evenflow.cli.quantities import show_duration
from evenflow.cli.table.options import AsJson, TableUrl, opened
from evenflow.model import MICROSECONDS
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.sources.postgresql.admin import FeedStatus
    from evenflow.sources.postgresql.client import FeedWriter


def show(url: TableUrl, as_json: AsJson = False) -> None:
    """Show a change feed: what its log contains, how far it can be read, which open transactions block its readers."""
    found = asyncio.run(_read(url))
    if as_json:
        print_json(as_facts(found))
        return
    feed = found.feed
    kept = show_duration(feed.keep_s) if feed.keep_s is not None else "everything"
    typer.echo(
        f"{feed.name}: key {', '.join(feed.key)}; {'all' if feed.previous else 'latest'} versions; keeps {kept};"
        f" {'all rows copied' if feed.is_filled else 'rows not all copied yet'}"
    )
    rows = [(one["partition"], one["changes"], one["newest"], one["complete_up_to"]) for one in _partitions(found)]
    right = ("CHANGES", "NEWEST", "COMPLETE UP TO")
    for line in columns(("PARTITION", *right), rows, right):
        typer.echo(line)
    for writer in found.writers:
        typer.echo(_sentence(writer))
    if found.is_old:
        typer.echo("the trigger is of an older version of evenflow: let its owner run `evenflow table watch` again")


async def _read(url: str) -> FeedStatus:
    from evenflow.sources.postgresql import admin as postgresql_watch

    async with opened(url) as link:
        return await postgresql_watch.feed_status(link)


def as_facts(found: FeedStatus) -> dict[str, Any]:
    feed = found.feed
    return {
        "table": feed.name,
        "key": feed.key,
        "all_versions": feed.previous,
        "keep_s": feed.keep_s,
        "is_filled": feed.is_filled,
        "is_old": found.is_old,
        "partitions": _partitions(found),
        "open": [writer._asdict() for writer in found.writers],
    }


def _partitions(found: FeedStatus) -> list[dict[str, Any]]:
    look = found.horizon
    return [
        {
            "partition": str(place),
            "changes": found.kept.get(place, (0, 0))[0],
            "oldest_at": _moment(found.kept[place][1]) if place in found.kept else None,
            "newest": look.newest[place],
            "complete_up_to": look.horizons[place],
            "drawn": look.lasts[place],
        }
        for place in range(found.feed.partitions)
    ]


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / MICROSECONDS, UTC)


def _sentence(writer: FeedWriter) -> str:
    age = f", open for {show_duration(system_clock().wall() - writer.since.timestamp())}," if writer.since else ""
    return f"{writer}{age} blocks readers: {writer.holds_back} later numbers wait for it"
