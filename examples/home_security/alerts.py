"""The group `alerts`: raises break-ins, glass break and carbon monoxide as soon as they are reported.

    python -m examples.home_security.alerts FOLDER NAME

An alert is in its blob before the handler returns, so checkpoints by policy are right. An instance that handles an
event again finds its alert there and leaves the blob unchanged. A late owner does no harm beside a new one: a put on a
version that has changed is rejected, and deciding again on the new version gives the same set of alerts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow import Every
from examples.home_security.alarms import alarms_in, no_alerts, with_alarms
from examples.home_security.blobs import Conflict
from examples.home_security.consuming import Consumer, no_events_fault, run_consumer
from examples.home_security.layout import Alerts, alerts_name, bucket_of, pack, unpack
from examples.home_security.places import ALERTS
from examples.home_security.reports import reports_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition
    from examples.home_security.alarms import Alarm
    from examples.home_security.blobs import Blobs
    from examples.home_security.layout import Alert
    from examples.home_security.places import Place


async def raise_alerts(blobs: Blobs, partition: str, alarms: Sequence[Alarm]) -> list[Alert]:
    """Store the alerts in blobs; returns the new ones."""
    buckets: dict[int, list[Alarm]] = {}
    for alarm in alarms:
        buckets.setdefault(bucket_of(alarm.home), []).append(alarm)
    raised = await asyncio.gather(*[_put(blobs, partition, bucket, mine) for bucket, mine in buckets.items()])
    return [alert for some in raised for alert in some]


async def _put(blobs: Blobs, partition: str, bucket: int, alarms: Sequence[Alarm]) -> list[Alert]:
    name = alerts_name(partition, bucket)
    while True:
        found = await blobs.get(name)
        before = unpack(found.data, Alerts, name) if found is not None else no_alerts(partition, bucket)
        after, raised = with_alarms(before, alarms)
        if after == before:
            return []
        try:
            await blobs.put(name, pack(after), found.version if found is not None else None)
            return raised
        except Conflict:
            continue


def make_consumer(place: Place, name: str) -> Consumer:
    consumer = Consumer(place, ALERTS, name, Every(seconds=1))

    @consumer.processor.on_partition_start
    async def start(partition: OwnedPartition) -> None:
        consumer.began(partition)

    @consumer.processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        alarms = alarms_in(events, reports_of([event.body for event in events]))
        if alarms:
            with no_events_fault():
                raised = await raise_alerts(consumer.blobs, partition.id, alarms)
            consumer.delays.note([alert.at_ms for alert in raised])
        consumer.handled(events, partition)

    return consumer


if __name__ == "__main__":
    run_consumer(make_consumer)
