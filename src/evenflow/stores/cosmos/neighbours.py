"""Who else keeps leases in the same container, for the same hub or for others, told by the ids of their documents.

A prefix is `{name}{host}{ending}`, and nobody can tell where in it a name ends and a host begins. But the ending alone
says which hub is meant, by its numbers: so whoever is new beside such leases may have meant them, and have named itself
or the host otherwise. It would begin anew, and pass over what is between.
"""

from __future__ import annotations

import logging
from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import Misconfigured
from evenflow.stores.cosmos.names import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evenflow.model import Convention, Group
    from evenflow.stores.cosmos.client import Papers

log = logging.getLogger(__name__)

LEASES = ".."
"""Between the prefix of a lease and its token."""
OURS = ".evenflow."
ALIKE = 0.6
"""From here on one name may be the other, misspelt or with something added."""


class Neighbour(NamedTuple):
    prefix: str
    leases: int
    is_ours: bool
    """One of ours has run with them."""

    def __str__(self) -> str:
        return f"{self.prefix!r} ({self.leases} {'lease' if self.leases == 1 else 'leases'})"


async def neighbours(papers: Papers) -> Sequence[Neighbour]:
    """All there are in a container."""
    query = "SELECT c.id FROM c WHERE CONTAINS(c.id, @leases) OR ENDSWITH(c.id, @group)"
    found = await papers.query("query groups", query, leases=LEASES, group=GROUP)
    return told_by([str(one["id"]) for one in found])


def told_by(ids: Iterable[str]) -> Sequence[Neighbour]:
    ids = list(ids)
    ours = {name.removesuffix(GROUP) for name in ids if name.endswith(GROUP)}
    leases = Counter(name.rpartition(LEASES)[0] for name in ids if LEASES in name and OURS not in name)
    return [Neighbour(prefix, leases[prefix], prefix in ours) for prefix in sorted(leases)]


def begins_as(prefix: str, group: Group, convention: Convention) -> bool:
    """Whether it is made by the convention: for this hub, or for one that was made anew since, or was before."""
    return prefix.startswith(f"{group.name}{host_of(group, convention)}_")


def host_of(group: Group, convention: Convention) -> str:
    return convention.prefix.removeprefix(group.name).removesuffix(convention.ending)


def meet(group: Group, convention: Convention, there: Iterable[Neighbour], where: str) -> None:
    """SentLedger of by a group that begins: Misconfigured when one of them has its name and its hub, and another host.

    Those of another name may be meant, too, which a line in the log says. It is said once: the next time, the group has
    leases of its own.
    """
    host = host_of(group, convention)
    by_names = convention.prefix_by_names.removeprefix(group.name + host)
    for one in there:
        for ending in filter(None, (convention.ending, by_names)):
            if not one.prefix.endswith(ending) or one.prefix in (convention.prefix, convention.prefix_by_names):
                continue
            head = one.prefix.removesuffix(ending)
            if head.endswith(host):
                _tell_of_name(group, head.removesuffix(host), one, where)
            elif head.startswith(group.name):
                # By its numbers it is the same container. By names it may be one of another account.
                is_sure = ending == convention.ending and is_one_account(head.removeprefix(group.name), host)
                _tell_of_host(group, convention, one, where, is_sure=is_sure)


def is_one_account(host: str, other: str) -> bool:
    """Whether one is the other, perhaps with a region in it. What begins with the end of a longer name is none."""
    if _is_local(host) or _is_local(other):
        return _is_local(host) and _is_local(other)
    first, second = host.partition("."), other.partition(".")
    return first[2] == second[2] and (first[0].startswith(second[0]) or second[0].startswith(first[0]))


def _is_local(host: str) -> bool:
    return host == "localhost" or host.replace(".", "").replace(":", "").isdecimal()


def _tell_of_host(group: Group, convention: Convention, one: Neighbour, where: str, *, is_sure: bool) -> None:
    told = (
        f"The {where} holds no lease of {group} under {convention.prefix!r}, but those of a processor that"
        f" {'has' if is_sure else 'may have'} the same name and container, with the account's host in another spelling:"
        f" {one}."
    )
    beside = f"prefix={convention.prefix} there, or another name, begins anew beside them."
    if not is_sure:
        log.warning("%s If it was to go on with those, stop it, and write the host as it is there.", told)
    elif one.is_ours:
        raise Misconfigured(
            f"{told} To begin anew would pass over changes, or handle them twice. Write the host as it is there;"
            f" {beside}"
        )
    else:
        raise Misconfigured(
            f"{told} To begin anew would pass over changes. To go on with them, write the host as it is there, or say"
            f" prefix={one.prefix} in the URL of the leases; {beside}"
        )


def _tell_of_name(group: Group, name: str, one: Neighbour, where: str) -> None:
    """Several processors on one container are nothing odd, above all where they are ours."""
    is_alike = SequenceMatcher(None, name.casefold(), group.name.casefold()).ratio() >= ALIKE
    log.log(
        logging.WARNING if is_alike or not one.is_ours else logging.INFO,
        "%s has no leases in the %s yet, and begins anew. There are leases of the same container for a processor"
        " %r: %s. If it was to go on with those, stop it, delete this group (evenflow group delete), and give the"
        " processor that name.",
        *(group, where, name, one),
    )
