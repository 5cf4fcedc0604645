"""A stream of Amazon Kinesis as a source: its shards are the partitions, which split and merge.

    KinesisSource("homes", region="eu-north-1")

A position is a record's sequence number, as text because it has too many digits; or, where there is no record, a time
with an `@` before it. So the number of events after a position is unknown; how long they have waited is known.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.model import BEGINNING, Bounds, Identity, Partition, Position
from evenflow.sources.kinesis.client import (
    InvalidArgument,
    KinesisClient,
    KinesisNotFound,
    Throttled,
    back_off_s,
    time_of,
)
from evenflow.sources.kinesis.codec import event_of, position_at_time, record_of
from evenflow.sources.kinesis.reader import ExpiredReader, KinesisReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

POLL_S = 0.25
SEND_RECORDS, SEND_BYTES = 500, 4 * 1024 * 1024
NEWEST_SEARCH = timedelta(seconds=10)
"""The newest record is searched among those of this period. If there are none, the middle of the period is the end."""
EXPIRED = Position("expired")
"""The position after the last event of a shard that has expired."""
OPTIONS = {"region", "endpoint", "profile", "poll_s"}
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def from_url(url: str) -> KinesisSource:
    """`kinesis://STREAM[?region=eu-north-1&endpoint=URL&profile=NAME&poll_s=0.25]`."""
    parts = urlsplit(url)
    stream = unquote(parts.netloc)
    if "@" in stream:
        raise Misconfigured("A Kinesis URL cannot contain a user or a password: keys come from AWS's own settings.")
    if not stream or parts.path.strip("/") or parts.fragment:
        raise Misconfigured("The Kinesis URL lacks a stream: write for instance kinesis://homes?region=eu-north-1.")
    given = dict(parse_qsl(parts.query))
    unknown = set(given) - OPTIONS
    if unknown:
        raise Misconfigured(
            f"Unknown option in a Kinesis URL: {', '.join(sorted(unknown))}. Its options are"
            f" {', '.join(sorted(OPTIONS))}. Keys do not belong in a URL: they come from AWS's environment variables, a"
            " profile or a role."
        )
    try:
        poll_s = float(given.get("poll_s", POLL_S))
    except ValueError:
        raise Misconfigured(f"poll_s={given['poll_s']} is not a number: give seconds, for instance 0.25.") from None
    return KinesisSource(
        stream, region=given.get("region"), endpoint=given.get("endpoint"), profile=given.get("profile"), poll_s=poll_s
    )


class KinesisSource:
    def __init__(
        self,
        stream: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        profile: str | None = None,
        poll_s: float = POLL_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """At the end of a shard, readers poll every `poll_s`. `options` are passed to boto3's `Session.client`."""
        if not NAME.fullmatch(stream):
            raise Misconfigured(
                f"{stream!r} is not a stream name: use letters, digits, '_', '.' and '-', at most 128 characters."
            )
        if endpoint is not None and not _is_web_address(endpoint):
            raise Misconfigured("endpoint= is not the URL of a server: give one such as http://127.0.0.1:5000.")
        if not 0.2 <= poll_s <= 60.0:
            raise Misconfigured(
                f"poll_s={poll_s} is out of range: give 0.2 to 60. A shard may be read five times a second."
            )
        self._client = KinesisClient(stream, region=region, endpoint=endpoint, profile=profile, options=options or {})
        self._poll_s = poll_s

    def __repr__(self) -> str:
        return f"<KinesisSource {self._client}>"

    # --- identity and partitions
    async def identity(self) -> Identity:
        summary = await self._summary()
        _, _, _, region, account, _ = summary["StreamARN"].split(":", 5)
        made: datetime = summary["StreamCreationTimestamp"]
        return Identity(f"kinesis.{region}.{account}", self._client.stream, made.astimezone(UTC).isoformat())

    async def _summary(self) -> dict[str, Any]:
        try:
            found = await self._client.ask_patiently("describe_stream_summary", StreamName=self._client.stream)
        except KinesisNotFound as error:
            raise Misconfigured(f"{error} Create it, or correct the name or the region.") from error
        summary: dict[str, Any] = found["StreamDescriptionSummary"]
        return summary

    async def partitions(self) -> Sequence[Partition]:
        """Open and closed shards, as long as their records are kept."""
        found: list[Partition] = []
        question: dict[str, Any] = {"StreamName": self._client.stream}
        while question:
            answer = await self._client.ask_patiently("list_shards", **question)
            found += map(_partition, answer["Shards"])
            question = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
        return found

    async def children(self, shard: PartitionId) -> tuple[Partition, ...]:
        return tuple(one for one in await self.partitions() if shard in one.parents)

    # --- starts
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        if isinstance(start, datetime):
            return await self._at(partition, start)
        if isinstance(start, Position):
            await self.iterator_after(partition, start)
            return start
        if start not in ("earliest", "latest"):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        try:
            await self.iterator(partition, BEGINNING)
        except PositionGone:
            return EXPIRED
        return BEGINNING if start == "earliest" else await self._newest(partition)

    async def _at(self, partition: PartitionId, time: datetime) -> Position:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        now, oldest = await self._times()
        if time > now + timedelta(seconds=1):  # `now` is in whole seconds
            return await self._newest(partition)
        found = BEGINNING if time <= oldest else position_at_time(time)
        await self.iterator(partition, found)
        return found

    async def _newest(self, partition: PartitionId) -> Position:
        """The position of the newest record; or a time after which no record has arrived, long enough ago that clock
        differences do not matter."""
        since = (await self._times())[0] - NEWEST_SEARCH
        last = None
        async for records in self._records_from(partition, position_at_time(since)):
            last = event_of(records[-1]).position if records else last
        return last if last is not None else position_at_time(since + NEWEST_SEARCH / 2)

    async def _times(self) -> tuple[datetime, datetime]:
        """The current time and the retention limit, by the service's clock: this machine's may be wrong."""
        answer = await self._client.ask_patiently("describe_stream_summary", StreamName=self._client.stream)
        now = time_of(answer)
        return now, now - timedelta(hours=answer["StreamDescriptionSummary"]["RetentionPeriodHours"])

    async def _records_from(
        self, partition: PartitionId, after: Position, limit: int = 10_000
    ) -> AsyncIterator[list[Any]]:
        """All records up to the current end of the shard."""
        iterator: str | None = await self.iterator(partition, after)
        while iterator is not None:
            answer = await self._client.ask_patiently("get_records", ShardIterator=iterator, Limit=limit)
            yield answer["Records"]
            iterator = answer.get("NextShardIterator") if answer.get("MillisBehindLatest", 0) > 0 else None

    async def iterator_after(self, shard: PartitionId, after: Position) -> str | None:
        """An iterator; None after the last record of a closed shard.

        PositionGone when records after this position may have expired. The service does not report that, so this looks
        for the last handled record: if it still exists, so do all later ones.
        """
        if after == BEGINNING:
            return await self.iterator(shard, after)
        if after.offset.startswith("@"):
            if _time_of(after) <= (await self._times())[1]:
                raise _maybe_expired(shard, after)
            return await self.iterator(shard, after)
        iterator: str | None = await self.iterator(shard, after, at=True)
        while iterator is not None:
            answer = await self._client.ask_patiently("get_records", ShardIterator=iterator, Limit=1)
            iterator = answer.get("NextShardIterator")
            if [record["SequenceNumber"] for record in answer["Records"]] == [after.offset]:
                return iterator
            if answer["Records"] or not answer.get("MillisBehindLatest", 0):
                break
        raise _maybe_expired(shard, after)

    async def iterator(self, shard: PartitionId, after: Position, *, at: bool = False) -> str:
        """An iterator after the position or, with `at`, at the record itself."""
        where: dict[str, Any] = {"StreamName": self._client.stream, "ShardId": shard, **_iterator_of(after)}
        if at:
            where["ShardIteratorType"] = "AT_SEQUENCE_NUMBER"
        try:
            found: str = (await self._client.ask_patiently("get_shard_iterator", **where))["ShardIterator"]
        except KinesisNotFound as error:
            raise await self._why_missing(shard, after) from error
        except InvalidArgument as error:
            raise PositionOutOfRange(f"Position {after} does not belong to shard {shard}: {error}") from error
        return found

    async def _why_missing(self, shard: PartitionId, after: Position) -> Exception:
        """Shards are numbered: one below the newest existed, and its records have expired."""
        await self._summary()
        there = [one.id for one in await self.partitions()]
        if shard < max(there, default="") and shard not in there:
            return PositionGone(
                f"Events after {after} of shard {shard} are no longer kept: the whole shard has expired. Set"
                ' on_gone="latest" to continue with its children.'
            )
        return Misconfigured(f"{self._client} has no shard {shard!r}. It has: {', '.join(there)}.")

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        if after == EXPIRED:
            return ExpiredReader(self, partition, after)
        iterator = await self.iterator_after(partition, after)
        return KinesisReader(self._client, self, partition, after, iterator, self._poll_s)

    # --- bounds
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        """The service does not report where a shard begins and ends."""
        return dict.fromkeys(partitions, Bounds())

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        firsts = await asyncio.gather(*(self._first(partition, place) for partition, place in after.items()))
        return {name: first.enqueued_at for name, first in zip(after, firsts, strict=True) if first is not None}

    async def _first(self, partition: PartitionId, after: Position) -> Event | None:
        if after == EXPIRED:
            return None
        try:
            async for records in self._records_from(partition, after, limit=1):
                if records:
                    return event_of(records[0])
        except (Throttled, PositionOutOfRange):
            pass  # throttled: readers have priority; out of range: expired events do not wait
        return None

    # --- writing
    async def send(self, events: Sequence[Event]) -> None:
        """A request may store only some of its records, so no request has two records with the same key."""
        for wave in _waves(events):
            for records in _requests(list(map(record_of, wave))):
                await self._put(records)

    async def _put(self, records: list[dict[str, Any]]) -> None:
        attempt = 0
        while records:
            try:
                answer = await self._client.ask_patiently(
                    "put_records", StreamName=self._client.stream, Records=records
                )
            except KinesisNotFound as error:
                raise Misconfigured(f"{error} Create it, or correct the name or the region.") from error
            except InvalidArgument as error:
                raise Misconfigured(str(error)) from error
            left = zip(records, answer["Records"], strict=True)
            records = [record for record, outcome in left if outcome.get("ErrorCode")]
            attempt += 1
            if records:
                await self._client.rest(back_off_s(attempt))

    async def aclose(self) -> None:
        await self._client.aclose()


def _maybe_expired(shard: PartitionId, after: Position) -> PositionGone:
    return PositionGone(
        f"Events after {after} of shard {shard} may have expired before they were read: the last handled record is no"
        ' longer kept. Start at "earliest" to continue with the events that are left.'
    )


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        return False


def _partition(shard: dict[str, Any]) -> Partition:
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    return Partition(shard["ShardId"], tuple(name for name in parents if name))


def _iterator_of(after: Position) -> dict[str, Any]:
    if after == BEGINNING:
        return {"ShardIteratorType": "TRIM_HORIZON"}
    if after.offset.startswith("@"):
        return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": _time_of(after)}
    if not after.offset.isdecimal():
        raise PositionOutOfRange(
            f"{after.offset!r} is not a Kinesis sequence number (expected an integer). Was it stored by another source?"
        )
    return {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after.offset}


def _time_of(position: Position) -> datetime:
    try:
        return datetime.fromisoformat(position.offset[1:])
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r} is not a time: write for instance @2026-01-01T12:00:00Z."
        ) from None


def _waves(events: Sequence[Event]) -> list[list[Event]]:
    """The first event of each key, then the second of each, and so on. Events without a key have no order to keep."""
    waves: list[list[Event]] = []
    counts: dict[str, int] = {}
    for event in events:
        at = counts.get(event.key, 0) if event.key else 0
        if event.key:
            counts[event.key] = at + 1
        if at == len(waves):
            waves.append([])
        waves[at].append(event)
    return waves


def _requests(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The records in batches within the limits of one request."""
    found: list[list[dict[str, Any]]] = []
    size_bytes = 0
    for record in records:
        own_bytes = len(record["Data"]) + len(record["PartitionKey"])
        if not found or len(found[-1]) == SEND_RECORDS or size_bytes + own_bytes > SEND_BYTES:
            found.append([])
            size_bytes = 0
        found[-1].append(record)
        size_bytes += own_bytes
    return found
