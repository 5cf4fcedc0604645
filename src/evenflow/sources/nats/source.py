"""A stream of NATS JetStream as a source: one token of its subjects is the partition.

    NatsSource("localhost:4222", "HOMES", subject="homes.{partition}")

A position is a sequence of the stream. The stream numbers all partitions together, so each partition has gaps.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit
from zlib import crc32

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.model import BEGINNING, Bounds, Identity, Partition, Position
from evenflow.sources.nats.client import JetStreamClient, JetStreamNotFound, StreamInfo, logger
from evenflow.sources.nats.codec import headers_of
from evenflow.sources.nats.reader import NatsReader, consumer_for, position_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

TOKEN = "{partition}"
NUMBER = re.compile(r"(\d+)")


def from_url(url: str) -> NatsSource:
    """`nats://[USER:PASSWORD@]HOST[:PORT][,...]/STREAM[?subject=homes.{partition}&partitions=16&creds=FILE]`."""
    parts = urlsplit(url)
    stream = unquote(parts.path.strip("/"))
    if not parts.netloc or not stream or "/" in stream:
        raise Misconfigured("The NATS URL lacks a server or a stream: write for instance nats://localhost:4222/HOMES.")
    given = dict(parse_qsl(parts.query))
    unknown = set(given) - {"subject", "partitions", "creds", "namespace"}
    if unknown:
        raise Misconfigured(
            f"Unknown option in a NATS URL: {', '.join(unknown)}. Its options are subject, partitions, creds and"
            " namespace."
        )
    count = given.get("partitions")
    if count is not None and not count.isdecimal():
        raise Misconfigured(f"partitions={count} is not a number: give a whole number.")
    options = {"user_credentials": given["creds"]} if "creds" in given else {}
    return NatsSource(
        parts.netloc,
        stream,
        subject=given.get("subject"),
        partitions=int(count) if count is not None else None,
        namespace=given.get("namespace", "nats"),
        options=options,
    )


class NatsSource:
    def __init__(
        self,
        servers: str,
        stream: str,
        *,
        subject: str | None = None,
        partitions: int | None = None,
        namespace: str = "nats",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`subject` contains {partition} as one of its tokens. By default that is the stream's only wildcard.

        With `partitions` their names are 0, 1, ... By default they are those that the stream's subjects name or, where
        the subjects have a wildcard, those that have events. `options` are passed to `nats.connect`.
        """
        if subject is not None and subject.count(TOKEN) != 1:
            raise Misconfigured(f"subject={subject!r} must contain {TOKEN} once, for instance homes.{TOKEN}.")
        if partitions is not None and partitions < 1:
            raise Misconfigured(f"partitions={partitions} is too small: give 1 or more.")
        self._client = JetStreamClient(servers, stream, dict(options or {}))
        self._subject = subject
        self._count = partitions
        self._namespace = namespace
        self._is_warned = self._is_beyond_logged = False

    def __repr__(self) -> str:
        return f"<NatsSource {self._client}>"

    # --- identity and partitions
    async def identity(self) -> Identity:
        return Identity(self._namespace, self._client.stream, (await self._info()).made)

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(name) for name in await self._names()]

    async def _names(self) -> list[PartitionId]:
        info = await self._info()
        if self._count is not None:
            await self._warn_if_beyond(self._count, info)
            return [str(number) for number in range(self._count)]
        template = await self._template()
        pattern = re.compile(
            re.escape(template).replace(re.escape(TOKEN), r"([^.*>]+)").replace(r"\*", "[^.]+").replace(">", ".+")
        )
        seen = await self._client.subjects(template.replace(TOKEN, "*"))
        found = {match[1] for subject in (*info.subjects, *seen) if (match := pattern.fullmatch(subject))}
        return sorted(found, key=_natural)

    async def _warn_if_beyond(self, count: int, info: StreamInfo) -> None:
        """Warns of events in a partition that is never read. A mapping to more partitions than given causes that."""
        if not self._is_beyond_logged:
            beyond = await self._filter(str(count))
            if await self._client.message(seq=max(1, info.first), next_by_subj=beyond) is not None:
                self._is_beyond_logged = True
                logger.warning(
                    "%s has events in %s, which is not read with partitions=%d. Check how many partitions its producers"
                    " or the server's subject mapping use.",
                    self._client,
                    beyond,
                    count,
                )

    async def _template(self) -> str:
        if self._subject is None:
            subjects = (await self._info()).subjects
            wild = [subject for subject in subjects if subject.split(".").count("*") == 1 and ">" not in subject]
            stems = {subject.rpartition(".")[0] for subject in subjects}
            if len(subjects) == 1 and wild:
                self._subject = wild[0].replace("*", TOKEN)
            elif len(stems) == 1 and "" not in stems and not any("*" in one or ">" in one for one in subjects):
                self._subject = f"{stems.pop()}.{TOKEN}"
            else:
                raise Misconfigured(
                    f"{self._client} has the subjects {', '.join(subjects)}: choose the token that is the partition,"
                    f" for instance subject=homes.{TOKEN}."
                )
        return self._subject

    async def _filter(self, partition: PartitionId) -> str:
        if not partition or any(mark in partition for mark in ".*> "):
            raise Misconfigured(
                f"{self._client} has no partition {partition!r}: a partition is one token of a subject."
            )
        return (await self._template()).replace(TOKEN, partition)

    async def _info(self) -> StreamInfo:
        try:
            return await self._client.info()
        except JetStreamNotFound as error:
            raise Misconfigured(str(error)) from error

    # --- starts
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        subject = await self._filter(partition)
        info = await self._info()
        if start == "earliest":
            oldest = await self._client.message(seq=max(1, info.first), next_by_subj=subject)
            return position_at(info.last if oldest is None else oldest[0] - 1)
        if start == "latest":
            return position_at(info.last)
        if isinstance(start, datetime):
            return await self._at_time(subject, start)
        if not isinstance(start, Position):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        self._check(_sequence(start), info)
        return position_at(_sequence(start))

    async def _at_time(self, subject: str, time: datetime) -> Position:
        """The server resolves the time: a consumer that starts there reports its sequence."""
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        text = time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        config = {"deliver_policy": "by_start_time", "opt_start_time": text, "filter_subject": subject}
        consumer = await consumer_for(self._client, config)
        try:
            begins: int = consumer["delivered"]["stream_seq"]
            return position_at(begins)
        finally:
            await self._client.send_request(f"CONSUMER.DELETE.{self._client.stream}.{consumer['name']}", {})

    def _check(self, after: int, info: StreamInfo) -> None:
        kept = f"the oldest is {info.first} and the newest {info.last}"
        if after < info.first - 1 and info.last > 0 and after < info.last:
            raise PositionGone(
                f'Events after {after} of {self._client} are no longer kept: {kept}. Start at "earliest" to continue'
                " with the events that are left."
            )
        if after > info.last:
            raise PositionOutOfRange(
                f"Position {after} is beyond the end of {self._client}: {kept}. Was the stream recreated?"
            )

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        subject, info = await self._filter(partition), await self._info()
        self._warn(info)
        self._check(_sequence(after), info)
        reader = NatsReader(self._client, subject, _sequence(after), info.made)
        await reader.begin()
        return reader

    def _warn(self, info: StreamInfo) -> None:
        if info.per_subject > 0 and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s keeps only %d messages per subject (max_msgs_per_subject): older messages are discarded silently,"
                " even if they were not read yet. Limit the stream by age, bytes or messages instead.",
                self._client,
                info.per_subject,
            )

    # --- bounds
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        info = await self._info()
        return {partition: await self._bounds(await self._filter(partition), info) for partition in partitions}

    async def _bounds(self, subject: str, info: StreamInfo) -> Bounds:
        oldest = await self._client.message(seq=max(1, info.first), next_by_subj=subject)
        newest = await self._client.message(last_by_subj=subject) if oldest is not None else None
        if oldest is None or newest is None:
            return Bounds(position_at(info.last + 1), position_at(info.last) if info.last else BEGINNING)
        return Bounds(position_at(oldest[0]), position_at(newest[0]), _moment(newest[1]))

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        found = {}
        for partition, position in after.items():
            following = _sequence(position) + 1
            message = await self._client.message(seq=max(1, following), next_by_subj=await self._filter(partition))
            if message is not None:
                found[partition] = _moment(message[1])
        return found

    # --- writing
    async def publish(self, events: Sequence[Event], partition: PartitionId | None = None) -> None:
        """To the partition of each event's key, or all to the given one. Other senders' events may come in between."""
        names = [partition] if partition is not None else await self._names()
        if not names:
            raise Misconfigured(f"{self._client} has no partitions to send to yet: set partitions=.")
        for event in events:
            name = names[crc32((event.key or "").encode()) % len(names)]
            subject = await self._filter(name)
            if "*" in subject or ">" in subject:
                raise Misconfigured(f"{self._client}: events cannot be sent to {subject}, which has a wildcard.")
            await self._client.publish(subject, event.body, headers_of(event))

    async def aclose(self) -> None:
        await self._client.aclose()


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in NUMBER.split(name) if part]


def _sequence(position: Position) -> int:
    if position.sequence is not None:
        return max(0, position.sequence)
    try:
        return max(0, int(position.offset))
    except ValueError:
        raise PositionOutOfRange(
            f"{position.offset!r} is not a JetStream sequence (expected an integer). Was it stored by another source?"
        ) from None


def _moment(text: str) -> datetime:
    """JetStream reports nanoseconds; the times of events have microseconds."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return moment.replace(microsecond=int(fraction[:6].ljust(6, "0"))) if fraction else moment
