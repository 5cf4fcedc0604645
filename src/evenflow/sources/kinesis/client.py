"""The driver, boto3, on a few threads of its own, and what its errors mean.

boto3 is AWS's own driver and supports every way to get credentials. Its asyncio counterparts pin one version of
botocore each, and would not be faster: a shard may be read five times a second. The driver's own retries are off: the
reader backs off itself and knows how long it has been throttled.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable
from evenflow.sources.kinesis.threads import DaemonThreads

try:
    from boto3.session import Session  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.exceptions import (  # type: ignore[import-untyped]
        ClientError,
        InvalidRegionError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
        ProfileNotFound,
    )
except ImportError as error:
    raise Misconfigured("kinesis:// needs the package boto3: pip install 'evenflow[kinesis]'.") from error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

THREADS = 16
CONNECT_S, ANSWER_S = 5.0, 15.0
TRIES = 8
"""For throttled requests about a stream: an account may describe streams twenty times a second altogether."""
BACK_OFF_S, BACK_OFF_MOST_S = 0.25, 5.0

THROTTLED = {
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
}
REFUSED = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "KMSAccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "UnrecognizedClientException",
}
MISSING_SETTINGS = (NoCredentialsError, NoRegionError, PartialCredentialsError, ProfileNotFound)
WRONG_SETTINGS = (InvalidRegionError, ParamValidationError)


class KinesisNotFound(SourceUnavailable):
    """The stream or the shard does not exist."""


class Throttled(SourceUnavailable):
    """Too many requests or too much data: try again later."""


class IteratorExpired(SourceUnavailable):
    """The shard iterator is older than five minutes."""


class InvalidArgument(EvenflowError):
    """The service rejected an argument."""


def time_of(answer: Mapping[str, Any]) -> datetime:
    """The time of the service's clock, in whole seconds."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def back_off_s(attempt: int) -> float:
    """The pause after this many throttled requests in a row."""
    return float(min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** (attempt - 1)))


class KinesisClient:
    def __init__(
        self, stream: str, *, region: str | None, endpoint: str | None, profile: str | None, options: Mapping[str, Any]
    ) -> None:
        self.stream = stream
        self._region, self._endpoint, self._profile, self._options = region, endpoint, profile, dict(options)
        self._threads = DaemonThreads("evenflow-kinesis", THREADS)
        self._making = Lock()
        self._client: Any = None
        self._closed = asyncio.Event()

    def __str__(self) -> str:
        return f"stream {self.stream} of Kinesis{f' in {self._region}' if self._region else ''}"

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One request."""
        if self._closed.is_set():
            raise SourceUnavailable(f"{self}: this source was closed. Open a new one.")
        found: dict[str, Any] = await self._threads.run(self._ask, operation, arguments)
        return found

    async def ask_patiently(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """The same, with retries while the service throttles it."""
        for attempt in range(1, TRIES):
            try:
                return await self.ask(operation, **arguments)
            except Throttled:
                await self.rest(back_off_s(attempt))
        return await self.ask(operation, **arguments)

    async def rest(self, seconds: float) -> None:
        """Sleeps until the time has passed or the source is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._closed.wait()

    async def aclose(self) -> None:
        self._closed.set()
        self._threads.end()
        if self._client is not None:
            self._client.close()

    def _ask(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._making:
                client = self._client = self._client or self._made()
            found: dict[str, Any] = getattr(client, operation)(**arguments)
        except EvenflowError:
            raise
        except MISSING_SETTINGS as error:
            raise Misconfigured(
                f"{self}: {_sentence(error)} Set ?region= and ?profile= in the URL, or AWS's environment variables."
            ) from error
        except WRONG_SETTINGS as error:
            raise Misconfigured(f"{self}: a setting is invalid: {_sentence(error)}") from error
        except ClientError as error:
            raise self._meaning(error) from error
        except Exception as error:  # parse errors of the driver have no common base class
            raise SourceUnavailable(f"{self} does not answer: {_sentence(error)}") from error
        return found

    def _made(self) -> Any:
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            max_pool_connections=THREADS,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        session = Session(profile_name=self._profile, region_name=self._region)
        try:
            return session.client("kinesis", endpoint_url=self._endpoint, config=config, **self._options)
        except (TypeError, ValueError) as error:
            raise Misconfigured(f"{self}: a setting is invalid: {_sentence(error)}") from error

    def _meaning(self, error: ClientError) -> EvenflowError:
        code, reason = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        if code == "ResourceNotFoundException":
            return KinesisNotFound(f"{self} does not exist, or lacks this shard: {reason}")
        if code in THROTTLED:
            return Throttled(f"{self} is throttled: {reason or code}")
        if code == "ExpiredIteratorException":
            return IteratorExpired(f"{self}: {reason or code}")
        if code in REFUSED:
            return Misconfigured(
                f"{self}: access was denied: {reason or code} Check the credentials and their IAM permissions."
            )
        if code in ("InvalidArgumentException", "ValidationException"):
            return InvalidArgument(f"{self}: {reason or code}")
        return SourceUnavailable(f"{self} does not answer: {reason or code}")


def _sentence(error: Exception) -> str:
    return f"{str(error).removesuffix('.')}."
