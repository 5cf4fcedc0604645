"""Where an Azure Blob store is and how it is spoken to, from a URL or from arguments, checked once."""

from __future__ import annotations

import math
import os
import re
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.drivers.network import has_no_account, http_parts, unknown_option, with_account
from evenflow.errors import Misconfigured

TIMEOUT_S = 4.0
"""For one request: below the patience of an instance, so that one without an answer can be tried again in time."""
PEER_EXPIRY_S = 180.0
"""When processors of Azure's own make take an owner for dead, unless they are told otherwise."""
DOMAIN = "blob.core.windows.net"

EMULATOR = "devstoreaccount1"
EMULATOR_ENDPOINT = f"http://127.0.0.1:10000/{EMULATOR}"
EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published with the storage emulator, the same for everybody: no secret."""

_OPTIONS = (
    "endpoint",
    "key_env",
    "sas_env",
    "connection_string_env",
    "api_version",
    "timeout_s",
    "shared",
    "peer_expiry_s",
)
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}|\$root")


@dataclass(frozen=True, slots=True)
class Address:
    """Keys, signatures and tokens are in no repr."""

    account_url: str
    container: str
    credential: Any = field(default=None, repr=False)
    """An account key, a SAS, a credential object of azure-core or azure-identity; None: DefaultAzureCredential."""
    api_version: str | None = None
    timeout_s: float = TIMEOUT_S
    shared: bool = True
    peer_expiry_s: float = PEER_EXPIRY_S

    def __post_init__(self) -> None:
        _check_endpoint(self.account_url)
        if isinstance(self.credential, dict):
            _check_key(self.credential.get("account_key"))
        if not self.container:
            raise _wrong("it names no container")
        if not _CONTAINER.fullmatch(self.container):
            raise _wrong(
                f"{self.container!r} is no name of a container: 3 to 63 lower-case letters, digits and single hyphens"
            )
        if self.api_version is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", self.api_version):
            raise _wrong(f"api_version={self.api_version!r} is no version, such as 2017-11-09")
        for name in ("timeout_s", "peer_expiry_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise _wrong(f"{name}={getattr(self, name)!r} is no number of seconds above 0")

    def __str__(self) -> str:
        """For people, without secrets; a URL that `address` takes."""
        parts = urlsplit(self.account_url)
        endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        if endpoint == EMULATOR_ENDPOINT:
            return f"azblob://{EMULATOR}/{self.container}"
        account = (parts.hostname or "").removesuffix(f".{DOMAIN}")
        if endpoint == f"https://{account}.{DOMAIN}":
            return f"azblob://{account}/{self.container}"
        return f"azblob://{_account_in(endpoint)}/{self.container}?endpoint={endpoint}"


def address(url: str) -> Address:
    """`azblob://ACCOUNT/CONTAINER?...`. Misconfigured when it makes no sense; no message repeats a secret."""
    try:
        parts = urlsplit(url)
        account, path = parts.hostname or "", unquote(parts.path).strip("/")
        odd = parts.username is not None or parts.port is not None
    except ValueError as error:
        raise _wrong("it cannot be read") from error
    if odd:
        raise _wrong("no key and no port stands in it; see key_env=, sas_env= and endpoint=")
    options = _options(parts.query)
    told: dict[str, Any] = {
        "container": path,
        "api_version": options.get("api_version"),
        "timeout_s": _seconds(options, "timeout_s", TIMEOUT_S),
        "peer_expiry_s": _seconds(options, "peer_expiry_s", PEER_EXPIRY_S),
        "shared": _yes_or_no(options.get("shared", "yes")),
    }
    if "connection_string_env" in options:
        if account:
            raise _wrong("the connection string names the account, so that the URL does not")
        account_url, credential = connection(_secret(options, "connection_string_env"))
        return Address(account_url, credential=credential, **told)
    given = options.get("endpoint", "")
    account = account or _account_in(given)
    if not account and (not given or "key_env" in options):
        raise _wrong("it names no storage account")
    if account and not _ACCOUNT.fullmatch(account):
        raise _wrong(f"{account!r} is no name of a storage account: 3 to 24 lower-case letters and digits")
    endpoint = given or (EMULATOR_ENDPOINT if account == EMULATOR else f"https://{account}.{DOMAIN}")
    return Address(with_account(endpoint, account), credential=_credential(options, account), **told)


def connection(text: str) -> tuple[str, Any]:
    """The endpoint and the credential that a connection string of a storage account names."""
    pairs = (part.partition("=") for part in text.strip().strip(";").split(";"))
    told = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if told.get("usedevelopmentstorage", "").lower() == "true":
        told = {"blobendpoint": EMULATOR_ENDPOINT, "accountname": EMULATOR, "accountkey": EMULATOR_KEY}
    account = told.get("accountname", "")
    suffix = told.get("endpointsuffix", "core.windows.net")
    default = f"{told.get('defaultendpointsprotocol', 'https')}://{account}.blob.{suffix}" if account else ""
    endpoint = told.get("blobendpoint") or default
    credential: Any = told.get("sharedaccesssignature")
    if account and told.get("accountkey"):
        credential = {"account_name": account, "account_key": told["accountkey"]}
    if not endpoint or not credential:
        raise Misconfigured(
            "The connection string of the Azure Blob store names no account with a key, and no BlobEndpoint with a"
            " SharedAccessSignature. Copy it from the storage account's access keys."
        )
    return with_account(endpoint, account), credential


def _account_in(endpoint: str) -> str:
    """The account that comes after a host that belongs to none, if there is one."""
    parts = http_parts(endpoint)
    path = parts.path.strip("/") if parts is not None and has_no_account(parts) else ""
    return path if _ACCOUNT.fullmatch(path) else ""


def _check_endpoint(url: str) -> None:
    parts = http_parts(url)
    if parts is not None and not parts.path.strip("/") and has_no_account(parts):
        raise _wrong(
            f"its endpoint at {parts.netloc.rpartition('@')[2]} names no account. With such a host it ends with the"
            f" account: {parts.scheme}://{parts.netloc.rpartition('@')[2]}/ACCOUNT"
        )
    if parts is None:
        raise _wrong(
            "its endpoint is a URL with http or https, a host and perhaps a port, such as"
            " http://127.0.0.1:10000/devstoreaccount1; see endpoint=, or BlobEndpoint in a connection string"
        )


def _check_key(key: object) -> None:
    try:
        is_one = isinstance(key, str) and bool(b64decode(key, validate=True))
    except ValueError:
        is_one = False
    if not is_one:
        raise _wrong("its account key is not base64. Copy the whole key from the storage account's access keys")


def _credential(options: dict[str, str], account: str) -> Any:
    if "key_env" in options and "sas_env" in options:
        raise _wrong("give key_env= or sas_env=, not both")
    if "key_env" in options:
        return {"account_name": account, "account_key": _secret(options, "key_env")}
    if "sas_env" in options:
        return _secret(options, "sas_env")
    return {"account_name": account, "account_key": EMULATOR_KEY} if account == EMULATOR else None


def _secret(options: dict[str, str], name: str) -> str:
    variable = options[name]
    found = os.environ.get(variable, "")
    if not found:
        raise _wrong(f"{name}={variable}: there is no such environment variable, or it is empty")
    return found


def _options(query: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _OPTIONS:
            raise _wrong(unknown_option(name, _OPTIONS))
    return found


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    try:
        return float(options.get(name, default))
    except ValueError as error:
        raise _wrong(f"{name}={options[name]!r} is no number of seconds") from error


def _yes_or_no(text: str) -> bool:
    if text.lower() not in _YES_NO:
        raise _wrong(f"shared={text!r}: it is yes or no")
    return _YES_NO[text.lower()]


def _wrong(what: str) -> Misconfigured:
    return Misconfigured(
        f"The Azure Blob store: {what}. Write it as azblob://ACCOUNT/CONTAINER[?OPTIONS], or as"
        " azblob:///CONTAINER?connection_string_env=NAME."
    )
