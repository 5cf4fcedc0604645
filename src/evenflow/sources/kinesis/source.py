"""A stream of Amazon Kinesis as a source: its shards are the partitions, which split and merge.

    KinesisSource("homes", region="eu-north-1")

A position is a record's sequence number, which has too many digits to be anything but text; or a time, `@` before it,
where there is no record to name. So how many events come after a position is unknown; how long they have waited is not.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.model import BEGINNING, Bounds, Identity, Partition, Position
from evenflow.sources.kinesis.client import Invalid, Link, Missing, Throttled, back_off_s, time_of
from evenflow.sources.kinesis.codec import event_of, moment, record_of
from evenflow.sources.kinesis.reader import ExpiredReader, KinesisReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

POLL_S = 0.25
SEND_RECORDS, SEND_BYTES = 500, 4 * 1024 * 1024
LATELY = timedelta(seconds=10)
"""What has arrived since then is looked through for the newest record; without any, half of it ago is the end."""
EXPIRED = Position("expired")
"""After the last event of a shard that is not there any more."""
OPTIONS = {"region", "endpoint", "profile", "poll_s"}
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def from_url(url: str) -> KinesisSource:
    """`kinesis://STREAM[?region=eu-north-1&endpoint=URL&profile=NAME&poll_s=0.25]`."""
    parts = urlsplit(url)
    stream = unquote(parts.netloc)
    if "@" in stream:
        raise Misconfigured("A Kinesis URL has no user and no password: keys come from AWS's own settings.")
    if not stream or parts.path.strip("/") or parts.fragment:
        raise Misconfigured("A Kinesis URL names a stream: kinesis://homes?region=eu-north-1.")
    given = dict(parse_qsl(parts.query))
    unknown = set(given) - OPTIONS
    if unknown:
        raise Misconfigured(
            f"A Kinesis URL knows {', '.join(sorted(OPTIONS))}, not {', '.join(sorted(unknown))}. Keys do not belong"
            " into it: they come from AWS's environment variables, a profile or a role."
        )
    try:
        poll_s = float(given.get("poll_s", POLL_S))
    except ValueError:
        raise Misconfigured(f"poll_s={given['poll_s']}: give seconds, for instance 0.25.") from None
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
        """At the end of a shard it is looked every `poll_s` whether something came. `options` are those of boto3's
        `Session.client`."""
        if not NAME.fullmatch(stream):
            raise Misconfigured(f"{stream!r} is no name of a stream: letters, digits, '_', '.' and '-', 128 at most.")
        if endpoint is not None and not _is_web_address(endpoint):
            raise Misconfigured("endpoint= is the address of a server, such as http://127.0.0.1:5000.")
        if not 0.2 <= poll_s <= 60.0:
            raise Misconfigured(f"poll_s={poll_s}: give 0.2 to 60; a shard may be read five times a second.")
        self._link = Link(stream, region=region, endpoint=endpoint, profile=profile, options=options or {})
        self._poll_s = poll_s

    def __repr__(self) -> str:
        return f"<KinesisSource {self._link}>"

    # --- which it is
    async def identity(self) -> Identity:
        facts = await self._facts()
        _, _, _, region, account, _ = facts["StreamARN"].split(":", 5)
        made: datetime = facts["StreamCreationTimestamp"]
        return Identity(f"kinesis.{region}.{account}", self._link.stream, made.astimezone(UTC).isoformat())

    async def _facts(self) -> dict[str, Any]:
        try:
            found = await self._link.ask_patiently("describe_stream_summary", StreamName=self._link.stream)
        except Missing as error:
            raise Misconfigured(f"{error} Make it, or correct the name or the region.") from error
        summary: dict[str, Any] = found["StreamDescriptionSummary"]
        return summary

    async def partitions(self) -> Sequence[Partition]:
        """Open and closed ones, as long as their records are kept."""
        found: list[Partition] = []
        question: dict[str, Any] = {"StreamName": self._link.stream}
        while question:
            answer = await self._link.ask_patiently("list_shards", **question)
            found += map(_partition, answer["Shards"])
            question = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
        return found

    async def children(self, shard: PartitionId) -> tuple[Partition, ...]:
        return tuple(one for one in await self.partitions() if shard in one.parents)

    # --- where to begin
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        if isinstance(start, datetime):
            return await self._at(partition, start)
        if isinstance(start, Position):
            await self.placed(partition, start)
            return start
        if start not in ("earliest", "latest"):
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        try:
            await self.iterator(partition, BEGINNING)
        except PositionGone:
            return EXPIRED
        return BEGINNING if start == "earliest" else await self._newest(partition)

    async def _at(self, partition: PartitionId, time: datetime) -> Position:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        now, oldest = await self._times()
        if time > now + timedelta(seconds=1):  # which tells whole seconds
            return await self._newest(partition)
        found = BEGINNING if time <= oldest else moment(time)
        await self.iterator(partition, found)
        return found

    async def _newest(self, partition: PartitionId) -> Position:
        """Of the newest record; or a time after which nothing has come yet, and long enough ago for any clock."""
        since = (await self._times())[0] - LATELY
        last = None
        async for records in self._through(partition, moment(since)):
            last = event_of(records[-1]).position if records else last
        return last if last is not None else moment(since + LATELY / 2)

    async def _times(self) -> tuple[datetime, datetime]:
        """Now, and since when records are kept, by the service's own clock: this machine's may be wrong."""
        answer = await self._link.ask_patiently("describe_stream_summary", StreamName=self._link.stream)
        now = time_of(answer)
        return now, now - timedelta(hours=answer["StreamDescriptionSummary"]["RetentionPeriodHours"])

    async def _through(self, partition: PartitionId, after: Position, limit: int = 10_000) -> AsyncIterator[list[Any]]:
        """All records up to where the shard ends now."""
        iterator: str | None = await self.iterator(partition, after)
        while iterator is not None:
            answer = await self._link.ask_patiently("get_records", ShardIterator=iterator, Limit=limit)
            yield answer["Records"]
            iterator = answer.get("NextShardIterator") if answer.get("MillisBehindLatest", 0) > 0 else None

    async def placed(self, shard: PartitionId, after: Position) -> str | None:
        """An iterator; None after the last record of a closed shard. PositionGone when records after this place may
        have expired: nobody tells, so what is looked for is the last one that was handled, which is no younger."""
        if after == BEGINNING:
            return await self.iterator(shard, after)
        if after.offset.startswith("@"):
            if _time_of(after) <= (await self._times())[1]:
                raise _perhaps_gone(shard, after)
            return await self.iterator(shard, after)
        iterator: str | None = await self.iterator(shard, after, at=True)
        while iterator is not None:
            answer = await self._link.ask_patiently("get_records", ShardIterator=iterator, Limit=1)
            iterator = answer.get("NextShardIterator")
            if [record["SequenceNumber"] for record in answer["Records"]] == [after.offset]:
                return iterator
            if answer["Records"] or not answer.get("MillisBehindLatest", 0):
                break
        raise _perhaps_gone(shard, after)

    async def iterator(self, shard: PartitionId, after: Position, *, at: bool = False) -> str:
        """`at`: it begins with the very record."""
        where: dict[str, Any] = {"StreamName": self._link.stream, "ShardId": shard, **_iterator_of(after)}
        if at:
            where["ShardIteratorType"] = "AT_SEQUENCE_NUMBER"
        try:
            found: str = (await self._link.ask_patiently("get_shard_iterator", **where))["ShardIterator"]
        except Missing as error:
            raise await self._why_missing(shard, after) from error
        except Invalid as error:
            raise PositionOutOfRange(f"Position {after} is none of shard {shard}: {error}") from error
        return found

    async def _why_missing(self, shard: PartitionId, after: Position) -> Exception:
        """Shards are numbered: one below the newest was there, and its records have expired."""
        await self._facts()
        there = [one.id for one in await self.partitions()]
        if shard < max(there, default="") and shard not in there:
            return PositionGone(
                f"Events after {after} of shard {shard} are no longer kept: the whole shard has expired. With"
                ' on_gone="latest" it ends, and its children go on.'
            )
        return Misconfigured(f"{self._link} has no shard {shard!r}. It has: {', '.join(there)}.")

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        if after == EXPIRED:
            return ExpiredReader(self, partition, after)
        iterator = await self.placed(partition, after)
        return KinesisReader(self._link, self, partition, after, iterator, self._poll_s)

    # --- what there is
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        """The service does not tell where a shard begins and ends."""
        return dict.fromkeys(partitions, Bounds())

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        firsts = await asyncio.gather(*(self._first(partition, place) for partition, place in after.items()))
        return {name: first.enqueued_at for name, first in zip(after, firsts, strict=True) if first is not None}

    async def _first(self, partition: PartitionId, after: Position) -> Event | None:
        if after == EXPIRED:
            return None
        try:
            async for records in self._through(partition, after, limit=1):
                if records:
                    return event_of(records[0])
        except (Throttled, PositionOutOfRange):
            pass  # its readers come first; and of what is gone nothing waits
        return None

    # --- writing
    async def send(self, events: Sequence[Event]) -> None:
        """A request may store some of its records and not others: so none has two of one key."""
        for wave in _waves(events):
            for records in _requests(list(map(record_of, wave))):
                await self._put(records)

    async def _put(self, records: list[dict[str, Any]]) -> None:
        attempt = 0
        while records:
            try:
                answer = await self._link.ask_patiently("put_records", StreamName=self._link.stream, Records=records)
            except Missing as error:
                raise Misconfigured(f"{error} Make it, or correct the name or the region.") from error
            except Invalid as error:
                raise Misconfigured(str(error)) from error
            left = zip(records, answer["Records"], strict=True)
            records = [record for record, outcome in left if outcome.get("ErrorCode")]
            attempt += 1
            if records:
                await self._link.rest(back_off_s(attempt))

    async def aclose(self) -> None:
        await self._link.aclose()


def _perhaps_gone(shard: PartitionId, after: Position) -> PositionGone:
    return PositionGone(
        f"Events after {after} of shard {shard} may have expired before they were read: what was handled last is not"
        ' kept any more. Begin at "earliest" to go on with what is left.'
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
            f"The offset {after.offset!r} is none of Kinesis', which are whole numbers. Was it another source's?"
        )
    return {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after.offset}


def _time_of(position: Position) -> datetime:
    try:
        return datetime.fromisoformat(position.offset[1:])
    except ValueError:
        raise PositionOutOfRange(f"The offset {position.offset!r} is no time: write @2026-01-01T12:00:00Z.") from None


def _waves(events: Sequence[Event]) -> list[list[Event]]:
    """The first of each key, then the second of each, and so on; those without one have no order to keep."""
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
    """Within the limits of one."""
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
