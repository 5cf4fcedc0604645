"""`evenflow group list`: lists all groups of a store, one per line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow.cli.output import columns, print_json, say
from evenflow.cli.selection import AsJson, ProfileName, SourceUrl, StoreUrl, opened_store, select_group
from evenflow.cli.views import group_facts
from evenflow.errors import EvenflowError
from evenflow.operate.inspect.survey import describe_third_party_leases, operable, survey, third_party_leases
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.cli.profiles import Profile
    from evenflow.model import Group
    from evenflow.ports import Source, Store

HEADERS = ("NAMESPACE", "HUB", "GROUP", "MEMBERS", "PARTITIONS", "OWNED", "LAG", "STATUS")

NONE_YET = (
    "There are no groups in this store yet. The first processor that uses the store creates its group: start one, for"
    " instance with `evenflow run MODULE:PROCESSOR`. If one runs already, check that it uses the same store URL."
)


def list_groups(
    store: StoreUrl = None, source: SourceUrl = None, profile: ProfileName = None, as_json: AsJson = False
) -> None:
    """List the groups of a store. Lag is shown for the groups of the hub that --source names."""
    show_groups(select_group(store, source, None, profile), as_json=as_json)


def show_groups(chosen: Profile, *, as_json: bool) -> None:
    found, foreign = asyncio.run(_look_at_all(chosen))
    for problem in {problem: None for _, look in found if look is not None for problem in look.found.problems}:
        say(f"warning: {problem}")
    if not found:
        say(NONE_YET)
    if foreign:
        say(describe_third_party_leases(foreign))
    if as_json:
        kept = [{"prefix": prefix, "leases": leases} for prefix, leases in foreign.items()]
        print_json({"groups": [_facts(group, look) for group, look in found], "foreign": kept})
    else:
        print("\n".join(columns(HEADERS, [_row(group, look) for group, look in found], HEADERS[3:7])))


async def _look_at_all(chosen: Profile) -> tuple[list[tuple[Group, GroupSnapshot | None]], Mapping[str, int]]:
    """All groups, and the leases of the store that belong to none, counted by prefix."""
    async with opened_store(chosen) as (store, source):
        groups = await operable(store).groups()
        hub = await _hub_of(source)
        looks = [
            (group, await _look_at(store, group, source if (group.namespace, group.hub) == hub else None))
            for group in groups
        ]
        return looks, await third_party_leases(store)


async def _hub_of(source: Source | None) -> tuple[str, str] | None:
    """The hub of the source; None if it is unreachable. The groups are listed all the same, without lag."""
    if source is None:
        return None
    try:
        identity = await source.identity()
    except EvenflowError as error:
        say(f"warning: {error}")
        return None
    return identity.namespace, identity.hub


async def _look_at(store: Store, group: Group, source: Source | None) -> GroupSnapshot | None:
    """None if the group cannot be read: the other groups are listed all the same."""
    clock = system_clock()
    try:
        return GroupWatcher().observe(await survey(store, group, source, moves=0), clock.now(), clock.wall())
    except EvenflowError as error:
        say(f"warning: {group}: {error}")
        return None


def _facts(group: Group, look: GroupSnapshot | None) -> dict[str, Any]:
    if look is None:
        unknown = dict.fromkeys(("members", "partitions", "owned", "ended", "lag", "status"))
        return {"namespace": group.namespace, "hub": group.hub, "group": group.name, **unknown}
    facts = group_facts(look) | {"members": look.running, "partitions": len(look.open)}
    return {key: facts[key] for key in facts if key not in ("trend", "per_s", "catch_up_s")}


def _row(group: Group, look: GroupSnapshot | None) -> Sequence[object]:
    if look is None:
        return group.namespace, group.hub, group.name, None, None, None, None, "unknown"
    counts = (look.running, len(look.open), look.owned, look.lag)
    return group.namespace, group.hub, group.name, *counts, look.status
