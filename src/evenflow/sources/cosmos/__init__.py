"""The change feed of Azure Cosmos DB as a source. A range is a partition, an LSN is its sequence.

- *A page is one request.* The client's own `query_items_change_feed` continues in the children of a range by itself,
  in one token for all of them that it cannot load again, which hides what leases are about. So a page is requested
  with the client's own machinery (signing, regions, retries), by range and ETag, and its answer's bytes are taken
  before the client decodes them. A document's bytes become the event's body; only its LSN, time and key are read.
- *The container's id* goes with every request. The client would continue with another container of the same name, and
  its retry sets the new id; ours is set again after that, so that the service refuses the request and the reader ends
  with `HubReplaced`.
- *A position names the piece of the container that it belongs to* (`drivers/cosmos/positions.py`). When ranges merge,
  each piece of the child has to resume after its own parent's checkpoint. An LSN alone does not say which, the service
  lists no range that no longer exists, and a function that runs once an hour never saw it. .NET's leases contain the
  range for the same reason. The merged child is read piece by piece, the one furthest behind first, up to where the
  next one is, until all are at one LSN.
- *A start at a time* is the LSN before the first change since then. In a merged range, changes of one log from before
  that time have LSNs above those of another log from after it, and nothing says where one ends. So the position
  contains the time, too (`8@-FF;1700000000`), and every request sends it, as the official client does, until the end
  of the range is reached. An embedded container knows its logs; there, each is searched.
- *Documents of one LSN* (a transactional batch, or two parents) would share a position, and a position between them
  would lose the rest or repeat it. The service does not say in which order they come, and of the latest versions some
  may have left their LSN by the next read. So they are ordered by a hash of their id and key, and a position inside an
  LSN names the last one that was passed. Such an event has no sequence, because no number orders it.
- *A range is gone when the list says so.* A 410 comes before a split is complete, and while a range moves. The ranges
  are listed again until the range is not among them (`ranges.py`). Then its reader ends without what it had not
  delivered: its children resume from the checkpoint.
- *Waiting* costs one request per poll. An answer contains the last LSN of its range (in the session token), so a page
  that reaches it is not followed by a request for more.
"""
