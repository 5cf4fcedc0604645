"""The public API of the embedded container: create, open, write, read, query, follow changes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evenflow.embedded.container import documents, splits
from evenflow.embedded.container.clock import wall_us as system_wall_us
from evenflow.embedded.container.document_operations import PAGE_BYTES, PAGE_ITEMS, DocumentOperations
from evenflow.embedded.container.feed import ChangeFeedPage, FeedRequest, ranges_in
from evenflow.embedded.container.feed_reads import checked_mode, read_feed_rows, wait_for_changes
from evenflow.embedded.container.handle import ContainerHandle
from evenflow.embedded.container.keys import key_paths
from evenflow.embedded.container.metadata import ContainerMetadata, create_container, new_rid, one_row
from evenflow.embedded.container.query import read_query
from evenflow.errors import Misconfigured
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from evenflow.embedded.container.feed import Mode
    from evenflow.embedded.container.keys import Key
    from evenflow.embedded.container.open_container import OpenContainer
    from evenflow.embedded.container.ranges import PartitionKeyRange

BUSY_TIMEOUT_S = 5.0
"""How long to wait for a locked file. Below a lease's time-to-live, so that the lock is reported as the cause."""
RETENTION_S = 7 * 24 * 3600.0
"""How long all versions and deletes are kept by default."""


class ContainerInfo(Struct, frozen=True, kw_only=True):
    """The current state of a container."""

    name: str
    path: str
    rid: str
    created_at: datetime
    partition_key: tuple[str, ...]
    default_ttl_s: int | None
    retention_s: float | None
    ranges: tuple[PartitionKeyRange, ...]
    documents: int


class Container:
    """A durable container of JSON documents in a folder. Any number of processes may open it and use it concurrently.

    All calls block for milliseconds and may come from any thread; concurrent writes share a commit. A write is durable
    on return. If the folder is deleted and created again, this object switches to the new container. Until then, every
    call raises `SourceUnavailable`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        wall_us: Callable[[], int] = system_wall_us,
    ) -> None:
        self.path = Path(path)
        self._handle = ContainerHandle(self.path, busy_timeout_s, wall_us)
        self.documents = DocumentOperations(self._handle)
        """For servers of containers: the same operations with ETags, LSNs and query positions."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        partition_key: str | Sequence[str] = "/id",
        ranges: int = 1,
        *,
        name: str | None = None,
        default_ttl_s: int | None = None,
        retention_s: float | None = RETENTION_S,
        properties: Mapping[str, Any] | None = None,
        database_rid: bytes = b"",
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        wall_us: Callable[[], int] = system_wall_us,
    ) -> Container:
        """Create a container and open it. Its name defaults to the folder's.

        With a `default_ttl_s`, documents expire that long after their last change, or after their own `ttl`. With -1,
        only documents that have a `ttl` expire. All versions and deletes are kept for `retention_s`; 0 keeps no log of
        them, None keeps all. `properties` and `database_rid` are for servers of containers.
        """
        folder = Path(path)
        metadata = ContainerMetadata(
            name=name or folder.absolute().name,
            rid=new_rid(database_rid),
            created_us=wall_us(),
            keys=key_paths(partition_key),
            default_ttl_s=default_ttl_s,
            retention_s=retention_s,
            properties=properties or {},
        )
        create_container(folder, metadata, ranges, busy_timeout_s)
        return cls(folder, busy_timeout_s=busy_timeout_s, wall_us=wall_us)

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Container({str(self.path)!r})"

    # Documents

    def insert(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Write a new document and return it as it is stored. `DocumentExists` if it already exists."""
        return self.documents.put(documents.checked(document), "create").document

    def upsert(self, document: Mapping[str, Any], *, if_match: str | None = None) -> dict[str, Any]:
        """Write a document, new or not, and return it as it is stored.

        With an ETag, an existing document must still have it; otherwise `DocumentChanged`.
        """
        return self.documents.put(documents.checked(document), "upsert", if_match).document

    def upsert_many(self, many: Iterable[Mapping[str, Any]]) -> int:
        """Write documents, new or not, in one transaction, and return their number."""
        metadata = self.opened().metadata
        writes = [documents.put(documents.draft_of(metadata, documents.checked(one)), "upsert", None) for one in many]
        return self._handle.write(lambda transaction: len([write(transaction) for write in writes]))

    def replace(self, document: Mapping[str, Any], *, if_match: str | None = None) -> dict[str, Any]:
        """Write an existing document and return it as it is stored. `DocumentMissing` if it does not exist."""
        return self.documents.put(documents.checked(document), "replace", if_match).document

    def delete(self, id: str, key: Key, *, if_match: str | None = None) -> None:
        """Delete a document. `DocumentMissing` if it does not exist."""
        self.documents.remove(id, key, if_match)

    def read(self, id: str, key: Key) -> dict[str, Any]:
        """The document. `DocumentMissing` if it does not exist."""
        return self.documents.get(id, key).document

    def query(
        self,
        query: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        key: Key | Sequence[Any] = (),
        range: str | None = None,
    ) -> Iterator[Any]:
        """The results of a query: of the whole container, of one partition key (or a prefix of one), or of one range.

        Pages are read as the results are consumed. `Unsupported` names what the container does not support.
        """
        parsed = read_query(query, parameters)
        return self.documents.results(parsed, self.documents.interval(key if key != () else None, range))

    # Changes

    def feed(
        self,
        range: str,
        after: int | None = None,
        *,
        since: datetime | None = None,
        within: tuple[str, str] | None = None,
        mode: Mode = "latest",
        max_items: int = PAGE_ITEMS,
        max_bytes: int = PAGE_BYTES,
    ) -> ChangeFeedPage:
        """A page of a range's changes after an LSN; None is the beginning.

        With `since`, only changes since that time; with `within`, only those of a part of the range's EPKs. The mode
        "latest" returns the latest version of each document, "all" every version and every delete. `RangeGone` if the
        range was split or merged, `PositionGone` if retention removed the changes that come next.
        """
        opened = self.opened()
        if max_items < 1:
            raise Misconfigured(f"max_items must be at least 1, not {max_items}.")
        request = FeedRequest(
            range=range,
            after=after,
            within=within,
            since_us=0 if since is None else _microseconds(since),
            mode=checked_mode(opened.metadata, mode),
            max_items=max_items,
            max_bytes=max_bytes,
        )
        return read_feed_rows(opened, request).page

    async def wait(self, range: str, after: int, timeout_s: float) -> bool:
        """Wait until the range has changes after an LSN, or was split or merged. Returns whether that happened.

        Writers in any process wake it.
        """
        return await wait_for_changes(self._handle, range, after, timeout_s)

    # Ranges

    def ranges(self) -> tuple[PartitionKeyRange, ...]:
        """All ranges, in the order of the EPK space, which they cover without gaps."""
        with self.opened().reading() as connection:
            return tuple(ranges_in(connection))

    def split(self, range: str, at: str | None = None) -> tuple[PartitionKeyRange, PartitionKeyRange]:
        """Split a range in the middle of its hashes, or at an EPK, and return its two children."""
        return self._handle.write(splits.with_sign(self.opened().sign, splits.split(range, at)))

    def merge(self, first: str, second: str) -> PartitionKeyRange:
        """Merge two adjacent ranges and return their child."""
        return self._handle.write(splits.with_sign(self.opened().sign, splits.merge(first, second)))

    # Administration

    def info(self) -> ContainerInfo:
        opened = self.opened()
        metadata = opened.metadata
        with opened.reading() as connection:
            (count,) = one_row(connection, "SELECT count(*) FROM documents")
            ranges = tuple(ranges_in(connection))
        return ContainerInfo(
            name=metadata.name,
            path=str(self.path),
            rid=metadata.rid_text,
            created_at=datetime.fromtimestamp(metadata.created_us / MICROSECONDS, UTC),
            partition_key=metadata.keys.paths,
            default_ttl_s=metadata.default_ttl_s,
            retention_s=metadata.retention_s,
            ranges=ranges,
            documents=count,
        )

    def trim(self) -> None:
        """Remove expired documents and what retention no longer keeps. Writers also do this periodically."""
        while self._handle.write(documents.expire) or self._handle.write(documents.trim):
            pass

    def close(self) -> None:
        """Idempotent."""
        self._handle.close()

    def opened(self) -> OpenContainer:
        """The container that is at this path now. For sources and servers."""
        return self._handle.opened()


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise Misconfigured(f"The time {moment} has no time zone. Add one, for instance tzinfo=UTC.")
    return round(moment.timestamp() * MICROSECONDS)
