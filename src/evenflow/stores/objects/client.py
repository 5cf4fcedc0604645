"""The client of a bucket: requests, time limits, and translation of the driver's errors. Only this module imports
obstore.

Every put is conditional: the object must not exist, or must be the version that was read. The driver retries requests
when the server is busy or the connection is lost. So a put that is refused because of another version may have made
that version itself in an earlier attempt; callers must be able to recognise their own writes.
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

from evenflow.drivers.network import host_and_port, http_parts, refusal, why_unreached
from evenflow.errors import EvenflowError, Misconfigured, StorageFull, StoreUnavailable
from evenflow.stores.objects.options import POLL_S, PREFIX, TIMEOUT_S, ObjectStoreOptions

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
"""The most requests of one listing or deletion, each with a thousand objects."""
DELETED_AT_ONCE = 16


EXIT_WAIT_S = 0.1
"""Far longer than the driver's threads need to release an answer or an abandoned request."""


@atexit.register
def _wait_for_driver_threads() -> None:
    """Waits until the driver's threads have released their Python objects, which they do shortly after an answer.

    A thread that does so during interpreter shutdown would abort the process with SIGABRT."""
    time.sleep(EXIT_WAIT_S)  # noqa: TID251


class ObjectVersion(NamedTuple):
    """The version of an object. Some servers compare the tag, others the number."""

    tag: str | None
    number: str | None


class StoredObject(NamedTuple):
    data: bytes
    version: ObjectVersion


class ObjectUnchanged(Exception):
    """The object still has the known version."""


class PutConflict(Exception):
    """The object does not have the version that the put expected."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.is_certain = "retries: 0," in str(error)
        """The driver sent the request once. Otherwise an earlier attempt may have taken effect."""


class BucketClient:
    def __init__(
        self,
        where: ObjectStoreOptions | Any,
        *,
        prefix: str = PREFIX,
        timeout_s: float = TIMEOUT_S,
        poll_s: float = POLL_S,
    ) -> None:
        """`where` is the options, or an obstore store of the caller, to which the other arguments apply."""
        self.options = where if isinstance(where, ObjectStoreOptions) else _described(where, prefix, timeout_s, poll_s)
        self._store = connect(where) if isinstance(where, ObjectStoreOptions) else where
        self._closed = False
        self._has_answered = False
        self._has_written = False
        """A write has succeeded, so a later refusal is a change of permissions."""

    def name(self, path: str) -> str:
        """The object's name for display."""
        return f"{self.options.place}/{path}"

    async def get(self, path: str, known: ObjectVersion | None = None) -> StoredObject | None:
        """Returns None if the object does not exist; raises ObjectUnchanged if it has the known version."""
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
                raise ObjectUnchanged from error
            return StoredObject(data, ObjectVersion(result.meta["e_tag"], result.meta["version"]))

    async def put(self, path: str, data: bytes, known: ObjectVersion | None) -> ObjectVersion:
        """Raises PutConflict unless the object has the known version; with None, unless it does not exist."""
        with self._translated():
            try:
                async with self._limit():
                    done = await obstore.put_async(
                        self._store, self._path(path), data, mode=_mode(known), use_multipart=False
                    )
            except (errors.AlreadyExistsError, errors.PreconditionError) as error:
                raise PutConflict(error) from error
            except FileNotFoundError as error:
                self._check_bucket(error)
                raise PutConflict(error) from error
            self._has_written |= not path.startswith(PROBE)
            return ObjectVersion(done["e_tag"], done["version"])

    async def paths(self, folder: str) -> list[str]:
        """Paths of all objects in a folder and its subfolders."""
        start = len(self.options.prefix) + 1
        with self._translated():
            async with self._limit(PAGES_MOST):
                found = await obstore.list(self._store, prefix=self._path(folder)).collect_async()
        return [meta["path"][start:] for meta in found]

    async def folders(self) -> list[str]:
        """Folders directly under the prefix."""
        start = len(self.options.prefix) + 1
        with self._translated():
            async with self._limit(PAGES_MOST):
                found = await obstore.list_with_delimiter_async(self._store, prefix=self.options.prefix)
        return [str(path)[start:].strip("/") for path in found["common_prefixes"]]

    async def delete(self, paths: Sequence[str]) -> None:
        """Missing objects are ignored."""
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
        """Raises Misconfigured if the server ignores conditions, because instances could not coordinate through it."""
        probe = f"{PROBE}{secrets.token_hex(8)}"
        try:
            first = await self.put(probe, b"1", None)
            await self.put(probe, b"2", first)
        except PutConflict as error:
            raise StoreUnavailable(f"The store {self.options} rejected an uncontended write.") from error
        are_obeyed = [await self._is_refused(probe, stale) for stale in (None, first)]
        await self.delete([probe])
        if not all(are_obeyed):
            raise Misconfigured(
                f"The server of the store {self.options} ignores conditional puts (If-None-Match, If-Match), so"
                " instances cannot coordinate through it. Use a server that supports them, or another store."
            )

    async def _is_refused(self, path: str, stale: ObjectVersion | None) -> bool:
        try:
            await self.put(path, b"3", stale)
        except PutConflict:
            return True
        return False

    def close(self) -> None:
        self._closed = True

    # --- private
    def _path(self, path: str) -> str:
        return f"{self.options.prefix}/{path}"

    async def _delete_each(self, paths: Sequence[str]) -> None:
        """For Google the driver deletes one by one and stops at the first missing object."""

        async def one(path: str) -> None:
            with suppress(FileNotFoundError):
                await obstore.delete_async(self._store, self._path(path))

        for start in range(0, len(paths), DELETED_AT_ONCE):
            await asyncio.gather(*map(one, paths[start : start + DELETED_AT_ONCE]))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates the driver's errors. The driver redacts signatures in its texts."""
        if self._closed:
            raise StoreUnavailable(f"The store {self.options} is closed.")
        try:
            yield
            self._has_answered = True
        except (PutConflict, ObjectUnchanged):
            self._has_answered = True
            raise
        except TimeoutError as error:
            raise self._timed_out() from error
        except (errors.BaseError, OSError, NotImplementedError, ValueError) as error:
            raise self._translate(error) from error

    def _limit(self, requests: int = 1) -> asyncio.Timeout:
        """The driver has the same limit for each attempt of a request; this one covers all attempts."""
        return asyncio.timeout(requests * self.options.timeout_s)

    def _timed_out(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The store {self.options} has not answered for {self.options.timeout_s:g} s. Check whether the server is"
            " overloaded or unreachable"
            + ("." if self._has_answered else ", and whether the environment has credentials.")
        )

    def _check_bucket(self, error: Exception) -> None:
        """A server also answers "not found" if the bucket is missing."""
        if _NO_BUCKET.search(str(error)):
            raise self._no_bucket() from error

    def _no_bucket(self) -> EvenflowError:
        return refusal(
            f"Bucket {self.options.bucket!r} of the store {self.options} does not exist. Create it, or correct the"
            " bucket, the region or the endpoint in the URL.",
            has_served=self._has_written,
        )

    def _translate(self, error: Exception) -> EvenflowError:
        text = str(error)
        status, said = _status(text), _said(text)
        if _NO_BUCKET.search(text):
            return self._no_bucket()
        if status == 507 or _FULL.search(text):
            return StorageFull(
                f"The server of the store {self.options} has no room to write: {said}. Free some space there; evenflow"
                " then continues by itself. No acknowledged write is lost."
            )
        if _NO_CREDENTIALS.search(text) and not self._has_answered:
            return Misconfigured(
                f"No credentials for the store {self.options}, neither in the environment nor from the machine: {said}."
                " Set them in the environment; see docs/reference/stores-objects.md."
            )
        if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError) or (
            status in (401, 403) or _RIGHTS.search(text)
        ):
            return refusal(
                f"The store {self.options} rejected the credentials or their permissions: {said}. Check the"
                " environment or the options of the URL; docs/reference/stores-objects.md lists the permissions.",
                has_served=self._has_written,
            )
        if isinstance(error, errors.NotSupportedError | NotImplementedError) or status == 501:
            return Misconfigured(f"The server of the store {self.options} lacks a required operation: {said}.")
        if status is not None and 400 <= status < 500 and status not in (408, 409, 429):
            return Misconfigured(
                f"The server of the store {self.options} rejected a request: {said}. Check the scheme and the"
                " endpoint in the URL."
            )
        if status is None and (at := _place_in(text)):
            why = why_unreached(error, at, "the server")
            return StoreUnavailable(f"The store {self.options} cannot be reached: {why}")
        return StoreUnavailable(f"The store {self.options} cannot be used now: {said}.")


def connect(options: ObjectStoreOptions) -> Any:
    """Creates an obstore store, which takes missing options from the environment. Opens no connection."""
    limit = timedelta(seconds=options.timeout_s)
    backoff = {
        "init_backoff": timedelta(seconds=BACKOFF_FIRST_S),
        "max_backoff": timedelta(seconds=BACKOFF_MOST_S),
        "base": 2,
    }
    client: dict[str, Any] = {"timeout": limit, "connect_timeout": limit}
    if options.allow_http:
        client["allow_http"] = True
    kind: Any = {"s3": drivers.S3Store, "gs": drivers.GCSStore, "az": drivers.AzureStore}[options.kind]
    try:
        return kind(
            options.bucket,
            client_options=client,
            retry_config={"max_retries": RETRIES, "retry_timeout": limit, "backoff": backoff},
            **options.driver_options,
        )
    except (errors.BaseError, ValueError, TypeError) as error:
        raise Misconfigured(f"Invalid URL of the store {options}: {_rejection(error, options)}.") from None


def _rejection(error: Exception, options: ObjectStoreOptions) -> str:
    if isinstance(error, errors.UnknownConfigurationKeyError):
        unknown = next(
            (name for name in options.driver_options if f'"{name}"' in str(error) or name in str(error)), "?"
        )
        return options.unknown(unknown)
    if "Account must be specified" in str(error):
        return "the storage account is missing: add account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME"
    said = _said(str(error))
    for value in options.driver_options.values():
        if isinstance(value, str) and value and value in said:
            return "the driver rejected an option"
    return said


def _described(store: Any, prefix: str, timeout_s: float, poll_s: float) -> ObjectStoreOptions:
    """The options of a caller's obstore store, for display."""
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}.get(type(store).__name__, "objects")
    config = getattr(store, "config", {})
    bucket = config.get("bucket") or config.get("container_name") or type(store).__name__
    return ObjectStoreOptions(scheme, str(bucket), prefix.strip("/"), timeout_s, poll_s)


def _mode(known: ObjectVersion | None) -> Any:
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
    """The host that the driver sent the request to, taken from its error text."""
    found = _SENT_TO.search(text)
    return host_and_port(found[0]) if found and http_parts(found[0]) else ""


def _said(text: str) -> str:
    """The server's or the driver's message, without URLs, whose query may be a signature."""
    if (code := _CODE.search(text)) is not None:
        message = _MESSAGE.search(text)
        return _short(f"{code[1]}: {message[1]}" if message else code[1])
    first = text.split("Debug source:")[0]
    if (status := _status(first)) is not None:
        return f"status {status}"
    return _short(re.sub(r"\S+://\S+", "(its address)", first.rpartition(" - ")[2]))


def _short(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".")
