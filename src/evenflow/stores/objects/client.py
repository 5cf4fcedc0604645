"""The way to a bucket: requests, time limits, and errors in our own words. The driver is imported here alone.

A put is conditional, always: on there being no such object, or on its being the very version that was read. The driver
repeats requests that the server was too busy for, and those whose connection was lost; so a put that is told to have
found another version may have made that version itself. Who puts has to be able to tell.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import secrets
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.drivers.network import http_parts, place, refusal, why_unreached
from evenflow.errors import EvenflowError, Misconfigured, StorageFull, StoreUnavailable
from evenflow.stores.objects.options import POLL_S, PREFIX, TIMEOUT_S, Address

try:
    import obstore
    from obstore import exceptions as errors
    from obstore import store as drivers
except ImportError as error:
    raise Misconfigured("The object store needs its driver: pip install 'evenflow[objects]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RETRIES = 5
BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.05, 0.5
PROBE = "probe-"
PAGES_MOST = 20
"""Of a thousand objects each, in a list or a deletion: so many requests may follow each other."""
DELETED_AT_ONCE = 16


LAST_S = 0.1
"""Far longer than the driver's threads need to let go of an answer, or of a request that was given up."""


@atexit.register
def _let_the_driver_end() -> None:
    """Its threads let go of what is Python's a moment after they have given their answer. One that does so when the
    interpreter has begun to end would end the process with SIGABRT, whatever its exit code was to be."""
    time.sleep(LAST_S)  # noqa: TID251


class Version(NamedTuple):
    """Of an object. Some servers compare the one, some the other."""

    tag: str | None
    number: str | None


class Found(NamedTuple):
    data: bytes
    version: Version


class Unchanged(Exception):
    """The object is still the version that is known."""


class Conflict(Exception):
    """The object is not the version that the put was made for."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.is_certain = "retries: 0," in str(error)
        """The driver sent it once. Otherwise an earlier try may have made the object what it is."""


class Link:
    def __init__(
        self, where: Address | Any, *, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S, poll_s: float = POLL_S
    ) -> None:
        """`where` is an address, or a store of the driver's own, made by the caller, to which the others belong."""
        self.address = where if isinstance(where, Address) else _described(where, prefix, timeout_s, poll_s)
        self._store = connect(where) if isinstance(where, Address) else where
        self._closed = False
        self._has_answered = False
        self._has_written = False
        """Something that stays. What is refused from then on was granted once."""

    def name(self, path: str) -> str:
        """An object's, for people."""
        return f"{self.address.place}/{path}"

    async def get(self, path: str, known: Version | None = None) -> Found | None:
        """None when there is no such object; Unchanged when it is the known version."""
        options: Any = {"if_none_match": known.tag} if known is not None and known.tag else None
        with self._translated():
            try:
                async with self._limit():
                    result = await obstore.get_async(self._store, self._path(path), options=options)
                    data = bytes(await result.bytes_async())
            except FileNotFoundError as error:
                self._check_bucket(error)
                return None
            except errors.NotModifiedError as error:
                raise Unchanged from error
            return Found(data, Version(result.meta["e_tag"], result.meta["version"]))

    async def put(self, path: str, data: bytes, known: Version | None) -> Version:
        """Conflict unless the object is the known version, or (None) there is none."""
        with self._translated():
            try:
                async with self._limit():
                    done = await obstore.put_async(
                        self._store, self._path(path), data, mode=_mode(known), use_multipart=False
                    )
            except (errors.AlreadyExistsError, errors.PreconditionError) as error:
                raise Conflict(error) from error
            except FileNotFoundError as error:
                self._check_bucket(error)
                raise Conflict(error) from error
            self._has_written |= not path.startswith(PROBE)
            return Version(done["e_tag"], done["version"])

    async def paths(self, folder: str) -> list[str]:
        """Of all objects in a folder, and in those inside it."""
        start = len(self.address.prefix) + 1
        with self._translated():
            async with self._limit(PAGES_MOST):
                found = await obstore.list(self._store, prefix=self._path(folder)).collect_async()
        return [meta["path"][start:] for meta in found]

    async def folders(self) -> list[str]:
        """In the prefix."""
        start = len(self.address.prefix) + 1
        with self._translated():
            async with self._limit(PAGES_MOST):
                found = await obstore.list_with_delimiter_async(self._store, prefix=self.address.prefix)
        return [str(path)[start:].strip("/") for path in found["common_prefixes"]]

    async def delete(self, paths: Sequence[str]) -> None:
        """What is not there is fine."""
        if not paths:
            return
        with self._translated():
            async with self._limit(PAGES_MOST):
                try:
                    await obstore.delete_async(self._store, [self._path(path) for path in paths])
                except FileNotFoundError as error:
                    self._check_bucket(error)
                    await self._delete_each(paths)

    async def check_conditions(self) -> None:
        """Misconfigured when the server does not obey conditions: nobody could agree on anything there."""
        probe = f"{PROBE}{secrets.token_hex(8)}"
        try:
            first = await self.put(probe, b"1", None)
            await self.put(probe, b"2", first)
        except Conflict as error:
            raise StoreUnavailable(f"The store {self.address} refuses a put that nobody disputes.") from error
        obeyed = [await self._is_refused(probe, stale) for stale in (None, first)]
        await self.delete([probe])
        if not all(obeyed):
            raise Misconfigured(
                f"The server of the store {self.address} does not obey conditional puts (If-None-Match, If-Match)."
                " Instances cannot agree through it: use a server that has them, or another store."
            )

    async def _is_refused(self, path: str, stale: Version | None) -> bool:
        try:
            await self.put(path, b"3", stale)
        except Conflict:
            return True
        return False

    def close(self) -> None:
        self._closed = True

    # --- inside
    def _path(self, path: str) -> str:
        return f"{self.address.prefix}/{path}"

    async def _delete_each(self, paths: Sequence[str]) -> None:
        """To Google the driver sends them one by one, and it stops at the first that is gone."""

        async def one(path: str) -> None:
            with suppress(FileNotFoundError):
                await obstore.delete_async(self._store, self._path(path))

        for start in range(0, len(paths), DELETED_AT_ONCE):
            await asyncio.gather(*map(one, paths[start : start + DELETED_AT_ONCE]))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The driver's error becomes one of ours. It hides signatures in its own text."""
        if self._closed:
            raise StoreUnavailable(f"The store {self.address} was closed.")
        try:
            yield
            self._has_answered = True
        except (Conflict, Unchanged):
            self._has_answered = True
            raise
        except TimeoutError as error:
            raise self._silent() from error
        except (errors.BaseError, OSError, NotImplementedError, ValueError) as error:
            raise self._ours(error) from error

    def _limit(self, requests: int = 1) -> asyncio.Timeout:
        """The driver has the same one for each try of a request; this one is for all of them."""
        return asyncio.timeout(requests * self.address.timeout_s)

    def _silent(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The store {self.address} has not answered for {self.address.timeout_s:g} s. See whether the server is"
            " overloaded or cut off"
            + ("." if self._has_answered else "; and whether there are credentials in the environment.")
        )

    def _check_bucket(self, error: Exception) -> None:
        """A server says "not found" for a missing bucket, too."""
        if _NO_BUCKET.search(str(error)):
            raise self._no_bucket() from error

    def _no_bucket(self) -> EvenflowError:
        return refusal(
            f"There is no bucket {self.address.bucket!r} for the store {self.address}. Make it, or correct the URL: the"
            " name of the bucket, the region, or the endpoint.",
            has_served=self._has_written,
        )

    def _ours(self, error: Exception) -> EvenflowError:
        text = str(error)
        status, said = _status(text), _said(text)
        if _NO_BUCKET.search(text):
            return self._no_bucket()
        if status == 507 or _FULL.search(text):
            return StorageFull(
                f"The server of the store {self.address} has no room to write: {said}. Make room there; evenflow goes"
                " on by itself then. Nothing that was acknowledged is lost."
            )
        if _NO_CREDENTIALS.search(text) and not self._has_answered:
            return Misconfigured(
                f"The store {self.address} has no credentials, and the machine has none to give: {said}. Set them in"
                " the environment, or see docs/reference/stores-objects.md."
            )
        if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError) or (
            status in (401, 403) or _RIGHTS.search(text)
        ):
            return refusal(
                f"The store {self.address} refuses these credentials, or what they may do: {said}. See the"
                " environment (or the options of its URL) and docs/reference/stores-objects.md for the rights.",
                has_served=self._has_written,
            )
        if isinstance(error, errors.NotSupportedError | NotImplementedError) or status == 501:
            return Misconfigured(f"The server of the store {self.address} lacks what evenflow needs: {said}.")
        if status is not None and 400 <= status < 500 and status not in (408, 409, 429):
            return Misconfigured(
                f"The server of the store {self.address} refuses a request: {said}. Is it a server of this kind, and"
                " the endpoint in the URL right?"
            )
        if status is None and (at := _place_in(text)):
            why = why_unreached(error, at, "the server")
            return StoreUnavailable(f"The store {self.address} cannot be reached: {why}")
        return StoreUnavailable(f"The store {self.address} cannot be used now: {said}.")


def connect(address: Address) -> Any:
    """A store of the driver. It takes what the URL does not say from the environment. Nothing is opened yet."""
    limit = timedelta(seconds=address.timeout_s)
    backoff = {
        "init_backoff": timedelta(seconds=BACKOFF_FIRST_S),
        "max_backoff": timedelta(seconds=BACKOFF_MOST_S),
        "base": 2,
    }
    client: dict[str, Any] = {"timeout": limit, "connect_timeout": limit}
    if address.allow_http:
        client["allow_http"] = True
    kind: Any = {"s3": drivers.S3Store, "gs": drivers.GCSStore, "az": drivers.AzureStore}[address.kind]
    try:
        return kind(
            address.bucket,
            client_options=client,
            retry_config={"max_retries": RETRIES, "retry_timeout": limit, "backoff": backoff},
            **address.options,
        )
    except (errors.BaseError, ValueError, TypeError) as error:
        raise Misconfigured(f"The URL of the store {address}: {_refused(error, address)}.") from None


def _refused(error: Exception, address: Address) -> str:
    if isinstance(error, errors.UnknownConfigurationKeyError):
        unknown = next((name for name in address.options if f'"{name}"' in str(error) or name in str(error)), "?")
        return address.unknown(unknown)
    if "Account must be specified" in str(error):
        return "it names no storage account: add account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME"
    said = _said(str(error))
    for value in address.options.values():
        if isinstance(value, str) and value and value in said:
            return "the driver refuses its options"
    return said


def _described(store: Any, prefix: str, timeout_s: float, poll_s: float) -> Address:
    """A store of the driver's own, as an address for people."""
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}.get(type(store).__name__, "objects")
    config = getattr(store, "config", {})
    bucket = config.get("bucket") or config.get("container_name") or type(store).__name__
    return Address(scheme, str(bucket), prefix.strip("/"), timeout_s, poll_s)


def _mode(known: Version | None) -> Any:
    if known is None:
        return "create"
    parts = {"e_tag": known.tag, "version": known.number}
    return {name: part for name, part in parts.items() if part is not None}


_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified (?:bucket|container) does not exist")
_RIGHTS = re.compile(r"<Code>(?:ExpiredToken|InvalidToken|TokenRefreshRequired|AuthenticationFailed)</Code>")
_FULL = re.compile(r"<Code>(?:XMinio\w*(?:StorageFull|QuotaExceeded)|QuotaExceeded|InsufficientStorage)</Code>")
_NO_CREDENTIALS = re.compile(r"metadata endpoint|token request|169\.254\.169\.254")
_SENT_TO = re.compile(r"https?://[^/?\s\"]+")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _place_in(text: str) -> str:
    """Where the driver has sent it to, as it tells itself: also where the URL does not say it."""
    found = _SENT_TO.search(text)
    return place(found[0]) if found and http_parts(found[0]) else ""


def _said(text: str) -> str:
    """What the server said, or the driver; never a URL, whose query may be a signature."""
    if (code := _CODE.search(text)) is not None:
        message = _MESSAGE.search(text)
        return _short(f"{code[1]}: {message[1]}" if message else code[1])
    first = text.split("Debug source:")[0]
    if (status := _status(first)) is not None:
        return f"status {status}"
    return _short(re.sub(r"\S+://\S+", "(its address)", first.rpartition(" - ")[2]))


def _short(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".")
