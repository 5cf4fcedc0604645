"""The address and credentials of an event hub, from a URL or from code, and the clients made from them.

This module opens no connection. Secrets (a connection string, a key, a proxy's password) do not leave it: they are in
no repr and in no message.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEME = "eventhubs://"
VARIABLE = "EVENTHUBS_CONNECTION_STRING"
"""The variable with the connection string, if a URL names neither a namespace nor another variable."""
DEFAULT_GROUP = "$Default"
"""The consumer group that every event hub has."""
PREFETCH = 300
"""The official client's default. Credit counts events, and an event may have a megabyte."""
EXTRA = "pip install 'evenflow[eventhubs]'"

CLIENT_OPTIONS = frozenset(
    {
        *("auth_timeout", "connection_verify", "custom_endpoint_address", "http_proxy", "idle_timeout"),
        *("logging_enable", "retry_backoff_factor", "retry_backoff_max", "retry_mode", "retry_total"),
        *("socket_timeout", "ssl_context", "transport_type", "use_tls", "user_agent"),
    }
)
"""Options that are passed to the official client unchanged."""


def client_class() -> Any:
    """The official client. It is imported late: the import is slow, and other sources do not need it."""
    try:
        from evenflow.sources.eventhubs.client import HubClient
    except ImportError as error:
        raise Misconfigured(f"eventhubs: needs the official client: {EXTRA} ({error}).") from error
    return HubClient


class EventHubsAccess:
    """The address and the credential of one event hub. Its clients share the credential."""

    def __init__(
        self,
        namespace: str | None = None,
        hub: str | None = None,
        *,
        connection_string: str | None = None,
        credential: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        unknown = sorted(set(options or ()) - CLIENT_OPTIONS)
        if unknown:
            raise Misconfigured(f"eventhubs: unknown option: {', '.join(unknown)}. {_known()}")
        if (namespace is None) == (connection_string is None):
            raise Misconfigured(
                "eventhubs: give either a namespace (NAME.servicebus.windows.net) or a connection_string=."
            )
        if connection_string is not None and credential is not None:
            raise Misconfigured("eventhubs: a connection_string= contains its own key; remove credential=.")
        self._namespace, self._hub = namespace, hub
        self._connection_string, self._credential = connection_string, credential
        self._options = dict(options or {})
        self._made_credential = False
        if "transport_type" in self._options:
            self._options["transport_type"] = _transport(self._options["transport_type"])
        if "ssl_context" not in self._options:
            self._options["ssl_context"] = _certificates(self._options.pop("connection_verify", None))

    def consumer(self, group: str) -> Any:
        """A client that reads in this consumer group. It opens no connection by itself."""
        return self._client(client_class(), consumer_group=group)

    def producer(self) -> Any:
        client_class()
        from azure.eventhub.aio import EventHubProducerClient

        return self._client(EventHubProducerClient)

    async def aclose(self) -> None:
        if self._made_credential:
            self._made_credential = False
            credential, self._credential = self._credential, None
            await credential.close()

    def _client(self, kind: Any, **more: Any) -> Any:
        try:
            if self._connection_string is not None:
                return kind.from_connection_string(
                    self._connection_string, eventhub_name=self._hub, **more, **self._options
                )
            return kind(
                fully_qualified_namespace=self._namespace,
                eventhub_name=self._hub,
                credential=self._opened_credential(),
                **more,
                **self._options,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise Misconfigured(f"eventhubs: {error}") from None  # its traceback may show the key

    def _opened_credential(self) -> Any:
        """The given credential, or DefaultAzureCredential (a managed identity, the environment, `az login`)."""
        if self._credential is None:
            try:
                from azure.identity.aio import DefaultAzureCredential
            except ImportError as error:
                raise Misconfigured(f"eventhubs: without a key it needs azure-identity: {EXTRA} ({error}).") from error
            self._credential, self._made_credential = DefaultAzureCredential(), True
        return self._credential


@lru_cache(maxsize=8)
def _certificates(path: str | None) -> ssl.SSLContext:
    """Read once: the client would do it for every connection, which blocks the event loop for 20 ms."""
    client_class()
    import certifi

    try:
        return ssl.create_default_context(cafile=path or certifi.where())
    except OSError as error:
        raise Misconfigured(f"eventhubs: connection_verify={path!r} is not a file of certificates: {error}") from error


def arguments_of(url: str) -> dict[str, Any]:
    """A URL as the arguments of EventHubsSource.

    `eventhubs://[POLICY[:KEY]@]NAMESPACE.servicebus.windows.net[:PORT]/HUB`, or `eventhubs:///HUB` with the connection
    string in an environment variable; and `?name=value` for options with simple values.
    """
    if not url.startswith(SCHEME):
        raise Misconfigured(f"This is not an event hub's URL: write {SCHEME}NAME.servicebus.windows.net/HUB.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            host = f"[{host}]"
    except ValueError:
        raise Misconfigured(
            "eventhubs: the URL cannot be parsed. Write a '/' in the key as %2F, and an '@' as %40."
        ) from None
    found = _query(parts.query)
    variable, key_variable = found.pop("connection_string_env", None), found.pop("key_env", None)
    hub = unquote(parts.path.strip("/")) or None
    if hub is not None and "/" in hub:
        raise Misconfigured(f"eventhubs: {hub!r} is not a hub's name: write {SCHEME}NAMESPACE/HUB.")
    if not host:
        return found | {"hub": hub, "connection_string": _from_environment(variable or VARIABLE)}
    if variable is not None:
        raise Misconfigured(
            f"eventhubs: the connection string in connection_string_env={variable} contains the namespace already."
            f" Remove one of them: {SCHEME}/HUB?connection_string_env={variable}."
        )
    if hub is None:
        raise Misconfigured(f"eventhubs: the URL names no hub: write {SCHEME}{host}/HUB.")
    if parts.username is not None:
        key = unquote(parts.password or "") if key_variable is None else _from_environment(key_variable, "key")
        found["credential"] = _key(unquote(parts.username), key)
    elif key_variable is not None:
        raise Misconfigured(f"eventhubs: key_env={key_variable} needs the policy: {SCHEME}POLICY@{host}/{hub}.")
    return found | {"namespace": host if port is None else f"{host}:{port}", "hub": hub}


def _key(policy: str, key: str) -> Any:
    if not policy or not key:
        raise Misconfigured(
            f"eventhubs: a key has two parts: write {SCHEME}POLICY@NAMESPACE/HUB?key_env=VARIABLE, or POLICY:KEY@."
        )
    client_class()
    from azure.core.credentials import AzureNamedKeyCredential

    return AzureNamedKeyCredential(policy, key)


def _from_environment(variable: str, what: str = "connection string") -> str:
    found = os.environ.get(variable, "").strip()
    if not found:
        raise Misconfigured(
            f"eventhubs: the environment variable {variable} is not set: put the {what} into it, or name another"
            " variable with ?connection_string_env= or ?key_env=. To use DefaultAzureCredential, write a namespace"
            f" without a key: {SCHEME}NAME.servicebus.windows.net/HUB."
        )
    return found


def _query(query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        reader = PARAMETERS.get(name)
        if reader is None:
            raise Misconfigured(f"eventhubs: unknown option {name!r}. Options are: {', '.join(sorted(PARAMETERS))}.")
        try:
            found[name] = reader(text)
        except (ValueError, KeyError):
            shown = "its value" if name == "http_proxy" else repr(text)
            raise Misconfigured(f"eventhubs: {name}: {shown} is invalid; {EXPECTED[reader]}.") from None
    return found


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def _switch(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _proxy(text: str) -> dict[str, Any]:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if not parts.hostname or not parts.port:
        raise ValueError
    found: dict[str, Any] = {"proxy_hostname": f"{parts.scheme}://{parts.hostname}", "proxy_port": parts.port}
    if parts.username:
        found |= {"username": unquote(parts.username), "password": unquote(parts.password or "")}
    return found


PARAMETERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("connection_verify", "consumer_group", "custom_endpoint_address", "user_agent"), _text),
    **dict.fromkeys(("connection_string_env", "key_env"), _text),
    **dict.fromkeys(("auth_timeout", "idle_timeout", "socket_timeout"), _seconds),
    **dict.fromkeys(("logging_enable", "use_tls"), _switch),
    "http_proxy": _proxy,
    "prefetch": _count,
    "transport_type": _text,
}
EXPECTED: dict[Callable[[str], Any], str] = {
    _text: "it must not be empty",
    _count: "give a whole number of at least 1",
    _seconds: "give a number of seconds",
    _switch: "give true or false",
    _proxy: "give http://[NAME:PASSWORD@]HOST:PORT",
}


def _transport(kind: Any) -> Any:
    """The official client's value, or its name: amqp, websocket."""
    client_class()
    from azure.eventhub import TransportType

    if isinstance(kind, TransportType):
        return kind
    names = {"amqp": TransportType.Amqp, **dict.fromkeys(_WEBSOCKET, TransportType.AmqpOverWebsocket)}
    try:
        return names[str(kind).lower()]
    except KeyError:
        raise Misconfigured(f"eventhubs: transport_type={kind!r} is unknown: give 'amqp' or 'websocket'.") from None


_WEBSOCKET = ("websocket", "websockets", "amqpoverwebsocket")


def _known() -> str:
    return f"The options passed to the official client are: {', '.join(sorted(CLIENT_OPTIONS))}."
