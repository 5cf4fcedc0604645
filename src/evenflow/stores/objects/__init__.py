"""The object store: groups in S3 and other buckets, by conditional puts.

A group's leases, members and state are one object (the group record), replaced by compare-and-set. Checkpoints are
objects of their own.

- A seal reads the group record before it creates a checkpoint record, and a commit before it restores one: whether the
  group was deleted, or lost writes, is not in the checkpoint record. Nothing else costs a request for it.
- The driver does send a request twice after a lost connection, and the second put is refused because of what the first
  one wrote. So every put has a name, the group record keeps the last of them, and a conflict is examined before it
  counts (`cell.py`). The name is needed anyway: on S3 the same content has the same tag, and a late put would find its
  condition true again.
- A snapshot is of a group record that was stored already, never of the one that is about to be put. So it stays true
  when another instance is faster, and is not written again.
- A lower heartbeat counter is proof of lost writes, however much others have written since: only a heartbeat through
  this client can have set the higher one. It also proves that a record descends from the known one, when the names of
  puts do not reach back so far.
"""
