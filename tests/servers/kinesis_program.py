"""moto as a server of Kinesis, for tests, with what it leaves out: what becomes of shards that are split or merged.

    python -m tests.servers.kinesis_program PORT FAULT

moto moves the records of a split shard into its children, lets a closed shard be written to, and never says that it
has ended. The service keeps a closed shard's records where they are, and ends its reading with no further iterator and
the child shards. Sequence numbers are as long as the service's, and arrivals have milliseconds. DELETE
/shard/REGION/STREAM/SHARD makes a shard expire, DELETE /records/REGION/STREAM/SHARD/N the N oldest records of one.
GET /refused tells how many requests met a fault.

FAULT is a file. While it is there, requests meet what it says: `OPERATION ERROR N`. Every N-th request of this
operation is refused with this error; with 1 each of them.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from moto.core.utils import unix_time
from moto.kinesis import models
from moto.kinesis.responses import KinesisResponse
from moto.kinesis.utils import decompose_shard_iterator
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.utilities.utils import md5_hash
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from collections.abc import Iterable

ACCOUNT = "123456789012"
FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
"""A sequence number, as the service's are."""

NUMBERS = count(FIRST, 7)


def put_record(self: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
    number = next(NUMBERS)
    record = models.Record(partition_key, data, number, explicit_hash_key)
    time = record.created_at_datetime
    record.created_at_datetime = time.replace(microsecond=time.microsecond // 1000 * 1000)
    record.created_at = unix_time(record.created_at_datetime)
    self.records[number] = record
    return str(number)


def shard_for_key(self: Any, partition_key: str, explicit_hash_key: str) -> Any:
    place = int(explicit_hash_key or md5_hash(partition_key.encode()).hexdigest(), 10 if explicit_hash_key else 16)
    open_ones = (shard for shard in self.shards.values() if shard.is_open)
    return next(shard for shard in open_ones if shard.starting_hash <= place <= shard.ending_hash)


def split_shard(
    self: Any, shard_to_split: str, new_starting_hash_key: str, original: Any = models.Stream.split_shard
) -> None:
    shard = self.shards[shard_to_split]
    kept, shard.records = shard.records, OrderedDict()
    try:
        original(self, shard_to_split, new_starting_hash_key)
    finally:
        shard.records = kept


def merge_shards(self: Any, shard: str, adjacent: str, original: Any = models.Stream.merge_shards) -> None:
    original(self, shard, adjacent)
    list(self.shards.values())[-1].records = OrderedDict()


def get_records(self: Any, original: Any = KinesisResponse.get_records) -> Any:
    answer: Any = original(self)
    iterator = self._get_param("ShardIterator")
    name, shard_id, _ = decompose_shard_iterator(iterator)
    stream = self.kinesis_backend.describe_stream(stream_arn=None, stream_name=name)
    shard = stream.get_shard(shard_id)
    _, _, reached = decompose_shard_iterator(answer.result["NextShardIterator"])
    if not shard.is_open and int(reached) >= shard.get_max_sequence_number():
        children = [one for one in stream.shards.values() if shard_id in (one.parent, one.adjacent_parent)]
        answer.result.pop("NextShardIterator")
        answer.result["ChildShards"] = [
            {
                "ShardId": one.shard_id,
                "ParentShards": [name for name in (one.parent, one.adjacent_parent) if name],
                "HashKeyRange": one.to_json()["HashKeyRange"],
            }
            for one in children
        ]
    return answer


models.Shard.put_record = put_record  # type: ignore[method-assign]
models.Stream.get_shard_for_key = shard_for_key  # type: ignore[method-assign]
models.Stream.split_shard = split_shard  # type: ignore[method-assign]
models.Stream.merge_shards = merge_shards  # type: ignore[method-assign, assignment]
KinesisResponse.get_records = get_records  # type: ignore[method-assign]


class Server:
    def __init__(self, fault: Path) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._fault = fault
        self._lock = Lock()
        self._numbers = count(1)
        self._refused = 0

    def __call__(self, request: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            if request["PATH_INFO"] == "/refused":
                start_response("200 OK", [("Content-Type", "text/plain")])
                return [str(self._refused).encode()]
            if request["REQUEST_METHOD"] == "DELETE":
                return self._expire(request["PATH_INFO"], start_response)
            if error := self._error_for(request.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]):
                self._refused += 1
                request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
                body = json.dumps({"__type": error, "message": f"{error} by order"}).encode()
                start_response("400 Bad Request", [("Content-Type", "application/x-amz-json-1.1")])
                return [body]
            return list(self._application(request, start_response))

    def _expire(self, path: str, start_response: Any) -> list[bytes]:
        _, what, region, stream, shard, *count = path.split("/")
        shards = models.kinesis_backends[ACCOUNT][region].streams[stream].shards
        if what == "shard":
            del shards[shard]
        else:
            for number in list(shards[shard].records)[: int(count[0])]:
                del shards[shard].records[number]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b""]

    def _error_for(self, operation: str) -> str | None:
        try:
            wanted, error, every = self._fault.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return error if wanted == operation and next(self._numbers) % int(every) == 0 else None


def main(port: int, fault: Path) -> None:
    application: Any = Server(fault)
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
