"""A stream of NATS JetStream as a source: a token of its subjects is the partition.

    NatsSource("localhost:4222", "HOMES", subject="homes.{partition}")

A position is a sequence of the stream. The stream counts all partitions together, so each partition's has gaps.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit
from zlib import crc32

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.model import BEGINNING, Bounds, Identity, Partition, Position
from evenflow.sources.nats.client import Link, Missing, StreamFacts, logger
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
        raise Misconfigured("A NATS URL names a server and a stream: nats://localhost:4222/HOMES.")
    given = dict(parse_qsl(parts.query))
    unknown = set(given) - {"subject", "partitions", "creds", "namespace"}
    if unknown:
        raise Misconfigured(f"A NATS URL knows subject, partitions, creds and namespace, not {', '.join(unknown)}.")
    count = given.get("partitions")
    if count is not None and not count.isdecimal():
        raise Misconfigured(f"partitions={count}: give a whole number.")
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
        """`subject` has {partition} where the partition is; left out, it is the stream's only wildcard.

        With `partitions` they are 0, 1, ...; left out, those that the stream's subjects name, or, where those have a
        wildcard, those that have events. `options` are those of `nats.connect`.
        """
        if subject is not None and subject.count(TOKEN) != 1:
            raise Misconfigured(f"subject={subject!r}: write {TOKEN} once, where the partition is: homes.{TOKEN}.")
        if partitions is not None and partitions < 1:
            raise Misconfigured(f"partitions={partitions}: give 1 or more.")
        self._link = Link(servers, stream, dict(options or {}))
        self._subject = subject
        self._count = partitions
        self._namespace = namespace
        self._is_warned = self._is_beyond_told = False

    def __repr__(self) -> str:
        return f"<NatsSource {self._link}>"

    # --- which it is
    async def identity(self) -> Identity:
        return Identity(self._namespace, self._link.stream, (await self._facts()).made)

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(name) for name in await self._names()]

    async def _names(self) -> list[PartitionId]:
        facts = await self._facts()
        if self._count is not None:
            await self._look_beyond(self._count, facts)
            return [str(number) for number in range(self._count)]
        template = await self._template()
        pattern = re.compile(
            re.escape(template).replace(re.escape(TOKEN), r"([^.*>]+)").replace(r"\*", "[^.]+").replace(">", ".+")
        )
        seen = await self._link.subjects(template.replace(TOKEN, "*"))
        found = {match[1] for subject in (*facts.subjects, *seen) if (match := pattern.fullmatch(subject))}
        return sorted(found, key=_natural)

    async def _look_beyond(self, count: int, facts: StreamFacts) -> None:
        """Events of a partition that nobody reads are easily made: by a mapping to more partitions than were given."""
        if not self._is_beyond_told:
            beyond = await self._filter(str(count))
            if await self._link.message(seq=max(1, facts.first), next_by_subj=beyond) is not None:
                self._is_beyond_told = True
                logger.warning(
                    "%s has events in %s, which nobody reads with partitions=%d. See how many partitions its producers,"
                    " or the server's mapping, make.",
                    self._link,
                    beyond,
                    count,
                )

    async def _template(self) -> str:
        if self._subject is None:
            subjects = (await self._facts()).subjects
            wild = [subject for subject in subjects if subject.split(".").count("*") == 1 and ">" not in subject]
            stems = {subject.rpartition(".")[0] for subject in subjects}
            if len(subjects) == 1 and wild:
                self._subject = wild[0].replace("*", TOKEN)
            elif len(stems) == 1 and "" not in stems and not any("*" in one or ">" in one for one in subjects):
                self._subject = f"{stems.pop()}.{TOKEN}"
            else:
                raise Misconfigured(
                    f"{self._link} has the subjects {', '.join(subjects)}: say which token is the partition, for"
                    f" instance subject=homes.{TOKEN}."
                )
        return self._subject

    async def _filter(self, partition: PartitionId) -> str:
        if not partition or any(mark in partition for mark in ".*> "):
            raise Misconfigured(f"{self._link} has no partition {partition!r}: a partition is one token of a subject.")
        return (await self._template()).replace(TOKEN, partition)

    async def _facts(self) -> StreamFacts:
        try:
            return await self._link.facts()
        except Missing as error:
            raise Misconfigured(str(error)) from error

    # --- where to begin
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        subject = await self._filter(partition)
        facts = await self._facts()
        if start == "earliest":
            oldest = await self._link.message(seq=max(1, facts.first), next_by_subj=subject)
            return position_at(facts.last if oldest is None else oldest[0] - 1)
        if start == "latest":
            return position_at(facts.last)
        if isinstance(start, datetime):
            return await self._at_time(subject, start)
        if not isinstance(start, Position):
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        self._check(_sequence(start), facts)
        return position_at(_sequence(start))

    async def _at_time(self, subject: str, time: datetime) -> Position:
        """A consumer that begins then tells where that is."""
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        text = time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        config = {"deliver_policy": "by_start_time", "opt_start_time": text, "filter_subject": subject}
        consumer = await consumer_for(self._link, config)
        try:
            begins: int = consumer["delivered"]["stream_seq"]
            return position_at(begins)
        finally:
            await self._link.tell(f"CONSUMER.DELETE.{self._link.stream}.{consumer['name']}", {})

    def _check(self, after: int, facts: StreamFacts) -> None:
        kept = f"the oldest is {facts.first} and the newest {facts.last}"
        if after < facts.first - 1 and facts.last > 0 and after < facts.last:
            raise PositionGone(
                f'Events after {after} of {self._link} are no longer kept: {kept}. Begin at "earliest" to go on with'
                " what is left."
            )
        if after > facts.last:
            raise PositionOutOfRange(f"Position {after} is beyond the end of {self._link}: {kept}.")

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        subject, facts = await self._filter(partition), await self._facts()
        self._warn(facts)
        self._check(_sequence(after), facts)
        reader = NatsReader(self._link, subject, _sequence(after), facts.made)
        await reader.begin()
        return reader

    def _warn(self, facts: StreamFacts) -> None:
        if facts.per_subject > 0 and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s keeps %d messages of a subject (max_msgs_per_subject): older ones that nobody has read yet go"
                " without a sign. Limit the stream by age, bytes or messages instead, where each event matters.",
                self._link,
                facts.per_subject,
            )

    # --- what there is
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        facts = await self._facts()
        return {partition: await self._bounds(await self._filter(partition), facts) for partition in partitions}

    async def _bounds(self, subject: str, facts: StreamFacts) -> Bounds:
        oldest = await self._link.message(seq=max(1, facts.first), next_by_subj=subject)
        newest = await self._link.message(last_by_subj=subject) if oldest is not None else None
        if oldest is None or newest is None:
            return Bounds(position_at(facts.last + 1), position_at(facts.last) if facts.last else BEGINNING)
        return Bounds(position_at(oldest[0]), position_at(newest[0]), _moment(newest[1]))

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        found = {}
        for partition, place in after.items():
            following = _sequence(place) + 1
            message = await self._link.message(seq=max(1, following), next_by_subj=await self._filter(partition))
            if message is not None:
                found[partition] = _moment(message[1])
        return found

    # --- writing
    async def publish(self, events: Sequence[Event], partition: PartitionId | None = None) -> None:
        """Into the partition of their key, or all into one. One by one: others' may come in between."""
        names = [partition] if partition is not None else await self._names()
        if not names:
            raise Misconfigured(f"{self._link} has no partitions to send to yet: give partitions=.")
        for event in events:
            name = names[crc32((event.key or "").encode()) % len(names)]
            subject = await self._filter(name)
            if "*" in subject or ">" in subject:
                raise Misconfigured(f"{self._link}: events cannot be sent to {subject}, which has a wildcard.")
            await self._link.publish(subject, event.body, headers_of(event))

    async def aclose(self) -> None:
        await self._link.aclose()


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in NUMBER.split(name) if part]


def _sequence(position: Position) -> int:
    if position.sequence is not None:
        return max(0, position.sequence)
    try:
        return max(0, int(position.offset))
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r} is none of JetStream's, which are whole numbers. Was it another source's?"
        ) from None


def _moment(text: str) -> datetime:
    """JetStream tells nanoseconds; the times of events have microseconds."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return moment.replace(microsecond=int(fraction[:6].ljust(6, "0"))) if fraction else moment
