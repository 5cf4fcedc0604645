"""A server of Kinesis on loopback: moto's, with shards that end as the service's do; streams to write and reshard."""

from __future__ import annotations

import sys
import urllib.request
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.leaks import shared as shared_by_tests
from tests.servers.processes import LOOPBACK, Folder, Program, Server, answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.model import Event

ROOT = Path(__file__).parents[2]
REGION = "eu-north-1"
KEYS = {"aws_access_key_id": "somebody", "aws_secret_access_key": "open-sesame"}


def skip_without_server() -> None:
    missing = [name for name in ("moto", "flask_cors", "boto3") if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not here: pip install moto flask flask-cors boto3")


class Kinesis(Server):
    """One server. What it had is gone when it ends."""

    def __init__(self) -> None:
        skip_without_server()
        self._folder = Folder("kinesis", None)
        self.port = free_port()
        self._fault = self._folder.path / "fault"
        self._names = count(1)
        self.start()
        self.client = self._client()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.servers.kinesis_program", str(self.port), str(self._fault)]
        self._program = Program(["env", f"PYTHONPATH={ROOT}", *command], self._folder.path / "log")
        self._program.wait_until_ready(lambda: answers(self.port))

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def _client(self) -> Any:
        from boto3.session import Session  # type: ignore[import-untyped]

        return Session(region_name=REGION).client("kinesis", endpoint_url=self.endpoint, **KEYS)

    def stream(self, shards: int) -> Stream:
        """A new one."""
        return Stream(self, f"stream-{next(self._names)}", shards)

    @contextmanager
    def faulty(self, operation: str, error: str, every: int = 1) -> Iterator[None]:
        """As `kinesis_program` says."""
        new = self._fault.with_suffix(".new")
        new.write_text(f"{operation} {error} {every}")
        new.rename(self._fault)
        try:
            yield
        finally:
            self._fault.unlink()

    def refused(self) -> int:
        """How many requests have met a fault."""
        with urllib.request.urlopen(f"{self.endpoint}/refused", timeout=10) as answer:
            return int(answer.read())

    def remove(self) -> None:
        self.kill()
        self._folder.remove()


class Stream:
    def __init__(self, server: Kinesis, name: str, shards: int) -> None:
        self.server, self.name = server, name
        self.make(shards)

    @property
    def url(self) -> str:
        return f"kinesis://{self.name}?region={REGION}&endpoint={self.server.endpoint}"

    def make(self, shards: int) -> None:
        self.server.client.create_stream(StreamName=self.name, ShardCount=shards)

    def delete(self) -> None:
        self.server.client.delete_stream(StreamName=self.name)

    # --- shards
    def shards(self) -> dict[str, dict[str, Any]]:
        return {one["ShardId"]: one for one in self.server.client.list_shards(StreamName=self.name)["Shards"]}

    def open_shards(self) -> list[str]:
        """In the order of their keys."""
        found = [one for one in self.shards().values() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return [one["ShardId"] for one in sorted(found, key=_first_key)]

    def split(self, shard: str) -> None:
        keys = self.shards()[shard]["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
        self.server.client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(middle))

    def merge(self, shard: str, adjacent: str) -> None:
        self.server.client.merge_shards(StreamName=self.name, ShardToMerge=shard, AdjacentShardToMerge=adjacent)

    def expire(self, shard: str) -> None:
        self._delete(f"shard/{REGION}/{self.name}/{shard}")

    def trim(self, shard: str, count: int) -> None:
        """So many records expire."""
        self._delete(f"records/{REGION}/{self.name}/{shard}/{count}")

    def _delete(self, path: str) -> None:
        url = f"{self.server.endpoint}/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=10):
            pass

    # --- records
    def put(self, shard: str, events: Sequence[Event]) -> None:
        """Into this shard, in order."""
        from evenflow.sources.kinesis.codec import record_of

        place = self.shards()[shard]["HashKeyRange"]["StartingHashKey"]
        for start in range(0, len(events), 500):
            records = [{**record_of(event), "ExplicitHashKey": place} for event in events[start : start + 500]]
            self.server.client.put_records(StreamName=self.name, Records=records)


def _first_key(shard: dict[str, Any]) -> int:
    return int(shard["HashKeyRange"]["StartingHashKey"])


@shared_by_tests
def shared() -> Kinesis:
    """One for the whole run of a test process."""
    return Kinesis()
