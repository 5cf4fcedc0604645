"""`evenflow group list`: all groups of a store, one line each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow.cli.output import columns, print_json, say
from evenflow.cli.picture import group_facts
from evenflow.cli.which import AsJson, ProfileName, SourceUrl, StoreUrl, opened_store, which
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
    "There is no group in this store yet: a group is made by the first processor that runs with it, for instance by"
    " `evenflow run MODULE:PROCESSOR`. If one has, see whether it was given the same URL."
)


def list_groups(
    store: StoreUrl = None, source: SourceUrl = None, profile: ProfileName = None, as_json: AsJson = False
) -> None:
    """List the groups of a store. Lag is known for groups of the hub that --source names."""
    show_groups(which(store, source, None, profile), as_json=as_json)


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
    """And what is there beside groups."""
    async with opened_store(chosen) as (store, source):
        groups = await operable(store).groups()
        hub = await _hub_of(source)
        looks = [
            (group, await _look_at(store, group, source if (group.namespace, group.hub) == hub else None))
            for group in groups
        ]
        return looks, await third_party_leases(store)


async def _hub_of(source: Source | None) -> tuple[str, str] | None:
    """A hub that is away hides no group: only their lag is unknown."""
    if source is None:
        return None
    try:
        identity = await source.identity()
    except EvenflowError as error:
        say(f"warning: {error}")
        return None
    return identity.namespace, identity.hub


async def _look_at(store: Store, group: Group, source: Source | None) -> GroupSnapshot | None:
    """None for a group that cannot be read: it hides no other."""
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
