"""The driver, boto3, on a few threads of its own, and what its errors mean.

boto3, because it is AWS's own and knows every way to get credentials. Its asyncio twins pin one version of botocore
each, and would not be any faster: a shard may be read five times a second. Its own retries are off: whoever reads backs
off in place, and knows for how long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable
from evenflow.sources.kinesis.threads import Threads

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
"""Of a question that is asked too often: streams may be described twenty times a second in a whole account."""
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


class Missing(SourceUnavailable):
    """The stream, or the shard, is not there."""


class Throttled(SourceUnavailable):
    """Asked too often, or for too much: later it works."""


class IteratorExpired(SourceUnavailable):
    """Five minutes have passed since it was given."""


class Invalid(EvenflowError):
    """The service does not understand an argument."""


def time_of(answer: Mapping[str, Any]) -> datetime:
    """By the service's own clock, in whole seconds."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def back_off_s(attempt: int) -> float:
    """After so many refusals in a row."""
    return float(min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** (attempt - 1)))


class Link:
    def __init__(
        self, stream: str, *, region: str | None, endpoint: str | None, profile: str | None, options: Mapping[str, Any]
    ) -> None:
        self.stream = stream
        self._region, self._endpoint, self._profile, self._options = region, endpoint, profile, dict(options)
        self._threads = Threads("evenflow-kinesis", THREADS)
        self._making = Lock()
        self._client: Any = None
        self._closed = asyncio.Event()

    def __str__(self) -> str:
        return f"stream {self.stream} of Kinesis{f' in {self._region}' if self._region else ''}"

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One request."""
        if self._closed.is_set():
            raise SourceUnavailable(f"{self}: this source was closed.")
        found: dict[str, Any] = await self._threads.run(self._ask, operation, arguments)
        return found

    async def ask_patiently(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """The same, where being told that it was too often is no news."""
        for attempt in range(1, TRIES):
            try:
                return await self.ask(operation, **arguments)
            except Throttled:
                await self.rest(back_off_s(attempt))
        return await self.ask(operation, **arguments)

    async def rest(self, seconds: float) -> None:
        """So long, unless the source is closed."""
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
                f"{self}: {_said(error)} Give ?region= and ?profile= in the URL, or set AWS's environment variables."
            ) from error
        except WRONG_SETTINGS as error:
            raise Misconfigured(f"{self}: a setting is wrong: {_said(error)}") from error
        except ClientError as error:
            raise self._meaning(error) from error
        except Exception as error:  # what cannot be parsed has no class that it shares with others
            raise SourceUnavailable(f"{self} does not answer: {_said(error)}") from error
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
            raise Misconfigured(f"{self}: a setting is wrong: {_said(error)}") from error

    def _meaning(self, error: ClientError) -> EvenflowError:
        code, said = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        if code == "ResourceNotFoundException":
            return Missing(f"{self} does not exist, or has no such shard: {said}")
        if code in THROTTLED:
            return Throttled(f"{self} is asked too often: {said or code}")
        if code == "ExpiredIteratorException":
            return IteratorExpired(f"{self}: {said or code}")
        if code in REFUSED:
            return Misconfigured(f"{self} does not let this program in: {said or code}")
        if code in ("InvalidArgumentException", "ValidationException"):
            return Invalid(f"{self}: {said or code}")
        return SourceUnavailable(f"{self} does not answer: {said or code}")


def _said(error: Exception) -> str:
    return f"{str(error).removesuffix('.')}."
