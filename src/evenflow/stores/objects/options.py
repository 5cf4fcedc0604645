"""Options of an object store: parses and validates the store URL."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.drivers.network import http_parts, unknown_option, with_account
from evenflow.errors import Misconfigured

TIMEOUT_S = 2.0
"""Far below a time-to-live, so that a request without an answer can be retried in time."""
POLL_S = 2.0
"""The poll interval for wake-ups while nothing changes."""
PREFIX = "evenflow"
PREFIX_CHARS_MAX = 256

KINDS = {"s3": "s3", "gs": "gs", "az": "az", "azure": "az"}
_OURS = ("endpoint", "region", "path_style", "allow_http", "account", "timeout_s", "poll_s")
_THEIRS = {
    "s3": ("access_key_id", "secret_access_key", "session_token", "role_arn", "skip_signature", "sse_kms_key_id"),
    "az": ("account_key", "sas_key", "client_id", "client_secret", "tenant_id", "token"),
    "gs": ("service_account", "service_account_key", "application_credentials", "bearer_token"),
}
"""The driver's most common options, for suggestions when one is mistyped."""
_BUCKET = re.compile(r"[$A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_ONLY = {"region": ("s3",), "path_style": ("s3",), "account": ("az",)}
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_UNFIT = set("\\{}^%`[]<>~#|\"'*?")


@dataclass(frozen=True, slots=True)
class ObjectStoreOptions:
    """The repr leaves out driver options, which may be secrets."""

    scheme: str
    bucket: str
    """On Azure, the container."""
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    poll_s: float = POLL_S
    """0 turns wake-ups off."""
    allow_http: bool = False
    driver_options: dict[str, str | bool] = field(default_factory=dict, repr=False)
    """Under the driver's names."""

    @property
    def kind(self) -> str:
        return KINDS.get(self.scheme, self.scheme)

    @property
    def endpoint(self) -> str:
        """Empty for the provider's default, or the value from the environment."""
        return str(self.driver_options.get("endpoint") or self.driver_options.get("base_url") or "")

    @property
    def place(self) -> str:
        """Prefix of object names in messages."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}"

    def __str__(self) -> str:
        """For display, without secrets."""
        return f"{self.place}?endpoint={self.endpoint}" if self.endpoint else self.place

    def unknown(self, name: str) -> str:
        """The message for an option that the driver does not know either."""
        ours = [one for one in _OURS if self.kind in _ONLY.get(one, KINDS.values())]
        return f"{unknown_option(name, [*ours, *_THEIRS.get(self.kind, ())])}, and others of obstore's own"


def options_from_url(url: str) -> ObjectStoreOptions:
    """Raises Misconfigured for an invalid URL. No message repeats text that may be a key."""
    parts = urlsplit(url)
    if parts.scheme not in KINDS:
        raise _invalid(f"unknown scheme {parts.scheme!r}")
    if "@" in parts.netloc:
        raise _invalid("a user and a password are not supported here. Pass keys in the environment or as options")
    if not parts.netloc:
        raise _invalid("the bucket is missing")
    if not _BUCKET.fullmatch(unquote(parts.netloc)):
        raise _invalid(f"{unquote(parts.netloc)!r} is not a valid bucket name")
    given = _options(parts.query)
    if "endpoint" in given:
        given["endpoint"] = _endpoint(
            given["endpoint"], given.get("account", "") if KINDS[parts.scheme] == "az" else ""
        )
    if given.get("endpoint", "").lower().startswith("http://") and not _yes_or_no(
        given.get("allow_http", "no"), "allow_http"
    ):
        raise _invalid("endpoint= uses plain http; add allow_http=yes to permit that")
    kind = KINDS[parts.scheme]
    options = {name: value for name, value in given.items() if name not in _OURS}
    return ObjectStoreOptions(
        scheme=parts.scheme,
        bucket=unquote(parts.netloc),
        prefix=_prefix(unquote(parts.path).strip("/") or PREFIX),
        timeout_s=_seconds(given, "timeout_s", TIMEOUT_S),
        poll_s=_seconds(given, "poll_s", POLL_S, least_s=0.0),
        allow_http=_yes_or_no(given.get("allow_http", "no"), "allow_http"),
        driver_options={**options, **_translated(kind, given)},
    )


def _translated(kind: str, given: dict[str, str]) -> dict[str, str | bool]:
    """Translates our option names into the driver's."""
    words: dict[str, str | bool] = {}
    if "endpoint" in given:
        words["base_url" if kind == "gs" else "endpoint"] = given["endpoint"]
    for name, theirs in (("region", "region"), ("path_style", ""), ("account", "account_name")):
        if name not in given:
            continue
        if kind not in _ONLY[name]:
            raise _invalid(f"{name}= is valid for {_ONLY[name][0]}:// only")
        if theirs:
            words[theirs] = given[name]
        else:
            words["virtual_hosted_style_request"] = not _yes_or_no(given[name], name)
    return words


def _endpoint(url: str, account: str) -> str:
    parts = http_parts(url)
    if parts is None or parts.username is not None or parts.query:
        raise _invalid(
            "endpoint= must be an http or https URL with a host and an optional port, such as https://s3.example:9000"
        )
    return with_account(url, account)


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in found:
            raise _invalid(f"the option {name!r} is given twice")
        found[name] = value
    return found


def _prefix(text: str) -> str:
    if len(text) > PREFIX_CHARS_MAX or not (text.isascii() and text.isprintable()) or set(text) & _UNFIT:
        raise _invalid(f"the prefix has at most {PREFIX_CHARS_MAX} characters: letters, digits and - _ . /")
    if any(part in ("", ".", "..") for part in text.split("/")):
        raise _invalid("the prefix must not contain empty parts, '.' or '..'")
    return text


def _seconds(given: dict[str, str], name: str, default_s: float, least_s: float = 0.001) -> float:
    text = given.get(name, str(default_s))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least_s <= seconds < math.inf:
        raise _invalid(f"{name}={text!r} is not a number of seconds of at least {least_s:g}")
    return seconds


def _yes_or_no(text: str, name: str) -> bool:
    if text.lower() not in _YES_NO:
        raise _invalid(f"{name}={text!r}: must be one of {', '.join(_YES_NO)}")
    return _YES_NO[text.lower()]


def _invalid(what: str) -> Misconfigured:
    return Misconfigured(
        f"Invalid URL of the object store: {what}. Use s3://BUCKET[/PREFIX][?OPTION=VALUE]; gs:// and az:// work the"
        " same way."
    )
