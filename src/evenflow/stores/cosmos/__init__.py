"""The lease container of Cosmos DB, in the layouts of the change feed processors of .NET and Java.

Two documents cannot change in one step here, and still a heartbeat writes one document:

- An instance that takes from a silent member first touches its member row, by compare-and-set on the heartbeat
  counter, with ETags of leases from *before* that touch. A member that finds its row changed by another touches each
  of its leases before it reports them as its own. A taker that reads a lease again touches the row again, or reads
  again for a row that was missing (`members.py`, `swaps.py`). The ETag of one's own row is never learnt from a query:
  a touch would pass unnoticed.
- A lease's revision is not its ETag: renewals change the ETag, and must not look like changes of the lease.
- A missing record proves a loss of the history in which it was last seen, not of the history in which it is missed.
- The turn of a third-party processor gets an epoch of its own, one above the epoch floor. So the checkpoint that it
  left is above all epochs that ours were given before, and below the one that is given next.
- Java's newer processors can read no leases but their own. A lease of another layout under their prefix, or a
  continuation in another form, and they list none at all. So among theirs everything is written in their form, also
  children of splits. A range of ours that is merged with one of theirs leaves them a lease for its part, which they
  would otherwise never take. Java's older processor has another prefix: which of the two is meant is read from the
  container, so that all instances find the same.
"""
