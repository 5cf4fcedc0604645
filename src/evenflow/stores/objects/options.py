"""What an object store's URL says, checked once: which bucket, which part of it, and how it is to be spoken to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.drivers.network import http_parts, unknown_option, with_account
from evenflow.errors import Misconfigured

TIMEOUT_S = 2.0
"""Far below a time-to-live, so that a request without an answer can be tried again in time."""
POLL_S = 2.0
"""Between two looks for wake-ups, when nothing moves."""
PREFIX = "evenflow"
PREFIX_CHARS_MAX = 256

KINDS = {"s3": "s3", "gs": "gs", "az": "az", "azure": "az"}
_OURS = ("endpoint", "region", "path_style", "allow_http", "account", "timeout_s", "poll_s")
_THEIRS = {
    "s3": ("access_key_id", "secret_access_key", "session_token", "role_arn", "skip_signature", "sse_kms_key_id"),
    "az": ("account_key", "sas_key", "client_id", "client_secret", "tenant_id", "token"),
    "gs": ("service_account", "service_account_key", "application_credentials", "bearer_token"),
}
"""The driver's own that are asked for most, for those who have mistyped one."""
_BUCKET = re.compile(r"[$A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_ONLY = {"region": ("s3",), "path_style": ("s3",), "account": ("az",)}
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_UNFIT = set("\\{}^%`[]<>~#|\"'*?")


@dataclass(frozen=True, slots=True)
class Address:
    """Options may be secrets, and are in no repr."""

    scheme: str
    bucket: str
    """Or container, as Azure says."""
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    poll_s: float = POLL_S
    """0: nobody is woken before a heartbeat."""
    allow_http: bool = False
    options: dict[str, str | bool] = field(default_factory=dict, repr=False)
    """In the driver's own words."""

    @property
    def kind(self) -> str:
        return KINDS.get(self.scheme, self.scheme)

    @property
    def endpoint(self) -> str:
        """ "" is the provider's own, or what the environment says."""
        return str(self.options.get("endpoint") or self.options.get("base_url") or "")

    @property
    def place(self) -> str:
        """In which objects are named."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}"

    def __str__(self) -> str:
        """For people, without secrets."""
        return f"{self.place}?endpoint={self.endpoint}" if self.endpoint else self.place

    def unknown(self, name: str) -> str:
        """That the driver has no such option either."""
        ours = [one for one in _OURS if self.kind in _ONLY.get(one, KINDS.values())]
        return f"{unknown_option(name, [*ours, *_THEIRS.get(self.kind, ())])}, and others of obstore's own"


def address(url: str) -> Address:
    """Misconfigured when it says what makes no sense. No message repeats what may be a key."""
    parts = urlsplit(url)
    if parts.scheme not in KINDS:
        raise _wrong(f"there is no scheme {parts.scheme!r}")
    if "@" in parts.netloc:
        raise _wrong("it has no place for a user and a password. Give keys by the environment, or by options")
    if not parts.netloc:
        raise _wrong("it names no bucket")
    if not _BUCKET.fullmatch(unquote(parts.netloc)):
        raise _wrong(f"{unquote(parts.netloc)!r} is no name of a bucket")
    told = _options(parts.query)
    if "endpoint" in told:
        told["endpoint"] = _endpoint(told["endpoint"], told.get("account", "") if KINDS[parts.scheme] == "az" else "")
    if told.get("endpoint", "").lower().startswith("http://") and not _yes_or_no(
        told.get("allow_http", "no"), "allow_http"
    ):
        raise _wrong("endpoint= is plain http, over which nothing is sent unless you say allow_http=yes")
    kind = KINDS[parts.scheme]
    options = {name: value for name, value in told.items() if name not in _OURS}
    return Address(
        scheme=parts.scheme,
        bucket=unquote(parts.netloc),
        prefix=_prefix(unquote(parts.path).strip("/") or PREFIX),
        timeout_s=_seconds(told, "timeout_s", TIMEOUT_S),
        poll_s=_seconds(told, "poll_s", POLL_S, least_s=0.0),
        allow_http=_yes_or_no(told.get("allow_http", "no"), "allow_http"),
        options={**options, **_translated(kind, told)},
    )


def _translated(kind: str, told: dict[str, str]) -> dict[str, str | bool]:
    """Our short words, in the driver's."""
    words: dict[str, str | bool] = {}
    if "endpoint" in told:
        words["base_url" if kind == "gs" else "endpoint"] = told["endpoint"]
    for name, theirs in (("region", "region"), ("path_style", ""), ("account", "account_name")):
        if name not in told:
            continue
        if kind not in _ONLY[name]:
            raise _wrong(f"{name}= is for {_ONLY[name][0]}:// alone")
        if theirs:
            words[theirs] = told[name]
        else:
            words["virtual_hosted_style_request"] = not _yes_or_no(told[name], name)
    return words


def _endpoint(url: str, account: str) -> str:
    parts = http_parts(url)
    if parts is None or parts.username is not None or parts.query:
        raise _wrong(
            "endpoint= is a URL with http or https, a host and perhaps a port, such as https://s3.example:9000"
        )
    return with_account(url, account)


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in found:
            raise _wrong(f"the option {name!r} is given twice")
        found[name] = value
    return found


def _prefix(text: str) -> str:
    if len(text) > PREFIX_CHARS_MAX or not (text.isascii() and text.isprintable()) or set(text) & _UNFIT:
        raise _wrong(f"what follows the bucket has at most {PREFIX_CHARS_MAX} characters: letters, digits and - _ . /")
    if any(part in ("", ".", "..") for part in text.split("/")):
        raise _wrong("what follows the bucket has no empty part, and none that is '.' or '..'")
    return text


def _seconds(told: dict[str, str], name: str, default_s: float, least_s: float = 0.001) -> float:
    text = told.get(name, str(default_s))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least_s <= seconds < math.inf:
        raise _wrong(f"{name}={text!r} is no number of seconds from {least_s:g} on")
    return seconds


def _yes_or_no(text: str, name: str) -> bool:
    if text.lower() not in _YES_NO:
        raise _wrong(f"{name}={text!r}: it is one of {', '.join(_YES_NO)}")
    return _YES_NO[text.lower()]


def _wrong(what: str) -> Misconfigured:
    return Misconfigured(
        f"The URL of the object store: {what}. Write it as s3://BUCKET[/PREFIX][?OPTION=VALUE], or so with gs: or az:."
    )
