"""Opens a source, a store or a target of dead letters from an object or a URL. Drivers are imported late."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode

from evenflow.errors import Misconfigured, UnknownScheme
from evenflow.ports import DeadLetters, Source, Store, Writable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SOURCES = {
    "container": "evenflow.sources.container.source",
    "cosmos": "evenflow.sources.cosmos.source",
    "eventhubs": "evenflow.sources.eventhubs.source",
    "hub": "evenflow.sources.hub.source",
    "kafka": "evenflow.sources.kafka.source",
    "kinesis": "evenflow.sources.kinesis.source",
    "nats": "evenflow.sources.nats.source",
    "postgresql-table": "evenflow.sources.postgresql.source",
    **dict.fromkeys(("redis-streams", "rediss-streams"), "evenflow.sources.redis_streams.source"),
}
STORES = {
    "azblob": "evenflow.stores.azblob.store",
    "cosmos-leases": "evenflow.stores.cosmos.store",
    "memory": "evenflow.stores.memory",
    **dict.fromkeys(("s3", "gs", "az", "azure"), "evenflow.stores.objects.store"),
    "postgres": "evenflow.stores.postgresql.store",
    "postgresql": "evenflow.stores.postgresql.store",
    **dict.fromkeys(("redis", "rediss", "redis+unix"), "evenflow.stores.redis.store"),
    **dict.fromkeys(("valkey", "valkeys", "valkey+unix"), "evenflow.stores.redis.store"),
    "sqlite": "evenflow.stores.sqlite.store",
}
WRITABLE = {scheme: SOURCES[scheme] for scheme in ("eventhubs", "kafka", "kinesis", "redis-streams", "rediss-streams")}
"""Sources that accept events, so dead letters may go there."""
DEAD_LETTERS = {
    "hub": "evenflow.operate.dead_letters.hub",
    "jsonl": "evenflow.operate.dead_letters.folder",
    "memory": "evenflow.operate.dead_letters.memory",
    **WRITABLE,
}
"""A scheme, and the module with its `from_url(url)`."""
FEEDS = frozenset({"container", "cosmos", "postgresql-table"})
"""Sources whose events are changed documents: all have the options mode and poll_s."""
OFFLINE = frozenset({"cosmos", "cosmos-leases"})
"""Schemes whose objects are created without a request to a server, so a wrong URL is an error at once."""
PARAMETERS = {"poll_s": "poll_interval_s"}
"""The parameter's name for an option of a URL, where they differ."""
SUGGESTED = {"source": "hub", "store": "sqlite", "dead letters": "jsonl"}
"""The scheme to suggest for a bare path."""

PUBLIC = frozenset(
    {
        *("endpoint", "key_env", "sas_env", "connection_string_env", "api_version", "shared", "peer_expiry_s"),
        *("timeout_s", "region", "path_style", "allow_http", "account", "poll_s"),
        *("prefix", "cluster", "eviction", "ca"),
        *("schema", "listen", "transactions", "sslmode", "target_session_attrs"),
        *("consumer_group", "transport_type", "use_tls", "custom_endpoint_address"),
        *("mirror_group", "key_encoding", "namespace", "security.protocol"),
        *("mode", "max_items", "preferred_locations", "tls"),
        *("partitions", "subject"),
        *("table", "user", "host", "port", "dbname", "service", "passfile", "sslrootcert"),
        *("profile", "db", "stream", "body_field", "key_field", "maxlen"),
    }
)
"""Options of URLs that contain no secrets, so a command with them can be shown completely and pasted."""
NAMES_USER = frozenset({"postgres", "postgresql", "postgresql-table"})
"""Schemes whose URLs contain a user before the password. In other URLs, that part may be a token."""

_CONNECTION_STRING = re.compile(
    r"(?:[a-z0-9+-]+:/*)?(AccountEndpoint|Endpoint|DefaultEndpointsProtocol|BlobEndpoint|AccountName|AccountKey"
    r"|SharedAccess\w+|EntityPath)\s*=",
    re.IGNORECASE,
)
_INSTEAD = {
    "accountendpoint": {"source": "cosmos:///DATABASE/CONTAINER", "store": "cosmos-leases:///DATABASE/CONTAINER"},
    "endpoint": {"source": "eventhubs:///HUB"},
    "": {"store": "azblob:///CONTAINER"},
}
"""For each beginning of a connection string, the URL to write instead."""

_TABLES: Mapping[str, Mapping[str, str]] = {"source": SOURCES, "store": STORES, "dead letters": DEAD_LETTERS}


def check_parts(source: object, store: object, group: str) -> None:
    """Raises Misconfigured for whatever can be validated before a connection is opened."""
    for kind, given in (("source", source), ("store", store)):
        if isinstance(given, str):
            module = check_url(kind, given)
            if given.partition(":")[0] in OFFLINE:
                import_module(module).from_url(given)
    if _is_cosmos(source, "cosmos:") and _is_cosmos(store, "cosmos-leases:"):
        from evenflow.stores.cosmos.names import checked_prefix

        checked_prefix(group)  # the ids of leases begin with it, as .NET's do


def _is_cosmos(given: object, scheme: str) -> bool:
    return given.startswith(scheme) if isinstance(given, str) else _is_of_cosmos(given)


def open_source(source: object) -> Source:
    if isinstance(source, str):
        opened: Source = import_module(check_url("source", source)).from_url(source)
        return opened
    from evenflow.embedded.container import Container
    from evenflow.embedded.hub import Hub

    if isinstance(source, Hub):
        from evenflow.sources.hub.source import HubSource

        return HubSource(source)
    if isinstance(source, Container) or _is_of_cosmos(source):
        return open_feed(source, {})
    if not isinstance(source, Source):
        raise Misconfigured(
            f"source={source!r} is not a source: give a Hub, a Container, a source, or a URL such as 'hub:data/homes'."
        )
    return source


def open_feed(monitored: object, options: Mapping[str, Any]) -> Source:
    """A source whose events are changed documents. `options` (mode, poll_s) apply to a source that is opened here."""
    from evenflow.embedded.container import Container

    if isinstance(monitored, str):
        return open_source(feed_url(monitored, options))
    if isinstance(monitored, Container):
        from evenflow.sources.container.source import ContainerSource

        return ContainerSource(monitored, **options)
    if _is_of_cosmos(monitored):
        from evenflow.sources.cosmos.source import CosmosSource

        return CosmosSource(monitored, **options)
    if options:
        raise Misconfigured(f"{monitored!r} is open already: pass {' and '.join(options)} when you create it.")
    return open_source(monitored)


def _is_of_cosmos(given: object) -> bool:
    """A container of Cosmos DB's official client, which may not be installed."""
    return type(given).__module__.startswith("azure.cosmos")


def feed_url(url: str, options: Mapping[str, Any]) -> str:
    """The URL of a feed with these options. Misconfigured if it is not a feed, or has other values."""
    scheme, _, rest = url.partition(":")
    check_url("source", url, () if scheme in SOURCES else FEEDS)
    if scheme not in FEEDS:
        known = ", ".join(f"{name}:" for name in sorted(FEEDS))
        raise Misconfigured(
            f"{hide_secrets(url)!r} is not a change feed. Change feeds are {known}; use a Processor for other sources."
        )
    given = dict(parse_qsl(rest.partition("?")[2]))
    for name, value in options.items():
        if given.get(name, str(value)) != str(value):
            raise Misconfigured(
                f"{hide_secrets(url)!r} has {name}={given[name]}, but {PARAMETERS.get(name, name)}={value} was passed."
                " Remove one of them."
            )
    more = urlencode({name: value for name, value in options.items() if name not in given})
    return f"{url}{'&' if '?' in url else '?'}{more}" if more else url


def is_of_no_mode(url: str) -> bool:
    """Whether the URL is a feed without an explicit mode."""
    scheme, _, rest = url.partition(":")
    return scheme in FEEDS and "mode" not in dict(parse_qsl(rest.partition("?")[2], keep_blank_values=True))


def open_store(store: object, *, create: bool = True) -> Store:
    """With `create=False`, a store that does not exist is an error, for callers that only read."""
    if isinstance(store, str):
        opened: Store = import_module(check_url("store", store)).from_url(store, create=create)
        return opened
    if _is_of_cosmos(store):
        from evenflow.stores.cosmos.store import CosmosLeasesStore

        return CosmosLeasesStore(store)
    if not isinstance(store, Store):
        raise Misconfigured(f"store={store!r} is not a store: give a store, or a URL such as 'sqlite:data/leases'.")
    return store


def open_dead_letters(dead_letters: object, *, create: bool = True) -> DeadLetters:
    """A target of dead letters, which may be a writable hub. With `create=False` it must exist already."""
    if isinstance(dead_letters, str) and dead_letters.partition(":")[0] in WRITABLE:
        from evenflow.operate.dead_letters.hub import HubDeadLetters

        source = open_source(dead_letters)
        assert isinstance(source, Writable)
        return HubDeadLetters(source, owned=True)
    if isinstance(dead_letters, str):
        opened: DeadLetters = import_module(check_url("dead letters", dead_letters)).from_url(
            dead_letters, create=create
        )
        return opened
    from evenflow.embedded.hub import Hub

    if isinstance(dead_letters, Hub | Writable):
        from evenflow.operate.dead_letters.hub import HubDeadLetters

        return HubDeadLetters(dead_letters)
    if not isinstance(dead_letters, DeadLetters):
        raise Misconfigured(
            f"{dead_letters!r} cannot store dead letters: give a Hub, or a URL such as 'hub:data/dead' or"
            " 'jsonl:data/dead'."
        )
    return dead_letters


def check_url(kind: str, url: str, among: Collection[str] = ()) -> str:
    """The module that opens it; UnknownScheme if there is none. `among` restricts the allowed schemes."""
    schemes = {scheme: module for scheme, module in _TABLES[kind].items() if not among or scheme in among}
    if (begins := _CONNECTION_STRING.match(url)) is not None:
        raise _no_url(kind, begins[1].lower())
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in schemes:
        known = ", ".join(f"{name}:" for name in sorted(schemes))
        meant = SUGGESTED[kind] if SUGGESTED[kind] in schemes else "container"
        guess = f"; did you mean {meant}:{url}?" if not colon and url else ""
        if colon and (near := get_close_matches(scheme.lower().partition("+")[0], schemes, n=1)):
            guess = f"; did you mean {near[0]}:?"
        is_web = scheme.lower() in ("http", "https")
        if "cosmos" in schemes and (".documents.azure." in url or (among and is_web)):
            guess = "; did you mean cosmos://HOST/DATABASE/CONTAINER?"
        raise UnknownScheme(f"{kind} {hide_secrets(url)!r}: unknown scheme; known are {known}{guess}")
    return schemes[scheme]


def _no_url(kind: str, begins: str) -> Misconfigured:
    """The error for a connection string. It must not contain the key, which does not belong in a program either."""
    instead = _INSTEAD.get(begins, _INSTEAD[""]).get(kind)
    how = f" and write {instead}?connection_string_env=NAME" if instead else ""
    return Misconfigured(
        f"{kind}: this is a connection string, not a URL. Put it into an environment variable{how}. "
        f"Known are {', '.join(f'{name}:' for name in sorted(_TABLES[kind]))}"
    )


def hide_secrets(url: str) -> str:
    """A URL without possible passwords and keys: only options that are known to be public are kept."""
    if _CONNECTION_STRING.match(url) is not None:
        return "..."
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    address, _, query = rest.partition("?")
    if "@" in query and "@" not in address:
        return f"{scheme}://..."  # either an option with an '@' or a password with a '?'
    kept = "&".join(filter(_is_public, query.split("&")))
    before, _, place = address.rpartition("@")
    user = before.partition(":")[0] if scheme in NAMES_USER else ""
    # A user with an '@' may be the beginning of a password without a user.
    named = f"{user}@" if user and "@" not in user else ""
    return f"{scheme}://{named}{place}{f'?{kept}' if kept else ''}"


def _is_public(option: str) -> bool:
    """Whether the option is public, and its value cannot contain credentials."""
    name, _, value = option.partition("=")
    return name in PUBLIC and not set(unquote(value)) & set("@?#")
