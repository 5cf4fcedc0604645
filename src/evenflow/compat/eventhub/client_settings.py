"""Reads the settings of an official consumer client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.compat.eventhub.options import timing
from evenflow.compat.eventhub.receiving import ClientSettings
from evenflow.sources.eventhubs.options import CLIENT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL = "all"
"""The key under which the official client keeps a receiver of all partitions."""


def client_settings(client: Any, given: Mapping[str, Any], credential: Any) -> ClientSettings:
    namespace, interval_s = client._address.hostname, client._load_balancing_interval
    expires_s = given.get("partition_ownership_expiration_interval")
    options = {name: value for name, value in given.items() if name in CLIENT_OPTIONS and value is not None}
    return ClientSettings(
        namespace=namespace,
        hub=client.eventhub_name,
        group=client._consumer_group,
        access={"namespace": namespace, "hub": client.eventhub_name, "credential": credential, **options},
        checkpoint_store=client._checkpoint_store,
        timing=timing(interval_s, expires_s),
        retry_delay_most_s=max(0.1, interval_s),
        peers_expire_s=client._partition_ownership_expiration_interval,
    )


def key_of(group: str, partition: str) -> tuple[str, str]:
    return group, partition


def check_free(receiving: Mapping[tuple[str, str], object], group: str, partition: str | None) -> None:
    """Reject a second receiver of a partition on one client; a receiver of all partitions counts for each."""
    if key_of(group, ALL) in receiving:
        what = f"from all partitions for consumer group {group}."
    elif partition is None and any(one == group for one, _ in receiving):
        what = f"for consumer group {group}."
    elif partition is not None and key_of(group, partition) in receiving:
        what = f"from partition {partition} for consumer group {group}. "
    else:
        return
    raise ValueError(f"This consumer client is already receiving events {what}")
