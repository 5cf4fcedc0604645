"""The changes of a PostgreSQL table as a source.

A watched table has a trigger that writes each change into a log, in the change's own transaction, with a number from
its partition's sequence. The question is how far a reader may read: sequences are not in commit order.

*Transaction ids are no answer.* Reading what has an id below the oldest running one, ordered by (id, sequence), misses
nothing. But a transaction that got its id early may change a row late, after one with a higher id has changed it and
committed; then the two changes of that row are in the wrong order. It would also wait for every long transaction of
the whole server. Sequence numbers do have the order of a row's changes: a number is drawn while its transaction holds
the row, and the next transaction that changes it does so after that one's end.

*Locks show which transactions have not ended.* Before its first number in a partition, a transaction takes a shared
advisory lock whose key contains the last number drawn so far, and holds it until it ends (`enter`). A look at the log
(`look`) reads, in this order, the last numbers drawn, the locks (`pg_locks`), and a new snapshot. Take any transaction
that drew a number up to the last one. It had its lock before it drew, so before the locks were read. If it still has
it then, its numbers are above the lock's, and the horizon (the lowest of the last number and the locks' numbers) is
below them. If not, it has ended. A server makes a commit visible before it releases locks, so the later snapshot shows
what it wrote. Below the horizon, everything is there that will ever be.

*Nothing is read that a crash can undo.* Numbers that were drawn and rolled back, and commits that did not wait for the
disk, may be forgotten in a crash; then the numbers are drawn again, below where readers are. So a look that brings
news writes something itself if there is anything that is not on the disk, and its commit waits for that.

- *Savepoints.* A lock taken after a savepoint is released when the savepoint is rolled back. So is the note (a setting
  of the transaction) that it is held; the next change takes another.
- *Prepared transactions* keep their locks, also through a crash.
- *Another isolation level* would have the snapshot too early. A look refuses it and is repeated in a transaction of
  its own. *A standby* does not know the locks, and is refused.
- *Third-party locks* with such a key, if there are any, make readers wait and lose nothing; exclusive ones are
  ignored.
- *Deferrable primary keys* would let two transactions have the same key at once. They are refused.

*Failover.* A server that takes over may have lost numbers that were read. Its timeline is another one. The first
writer or reader that notices makes the sequences continue 2^40 above, before anything is drawn, and records in other
sequences where each of them was (`rise`). Both happen outside of its transaction, so no other session waits for it,
and a rollback does not undo it. The first look announces it (`turn`). So no number is given twice, and a reader that
stands beyond what is left gets an error.

*Why a row trigger.* Transition tables of a statement trigger would cost bulk writers less. But they cannot pair old
and new rows where the key changes, partitions of a table do not have them, and they run after an application's own row
triggers, which may have changed the row again: its changes would be out of order. One case is left: a trigger of the
application that changes *other* rows of the same statement. The server reports the inner change first. So a change
inside a trigger is noted in its transaction, and from then on each row is looked up as it is now, and its previous
version in the log.

*A read covers a range of numbers* (`STRIDE` in `reader.py`), not only a number of rows. A server that has no
statistics of the log takes everything above a position and sorts it, for each page again. Where numbers have gaps, the
next read covers more of them. The floor of what was pruned comes with every read, also with one that finds nothing.

*Latest versions* leave out what was replaced since, as far as the horizon was when the reader began a sweep: by then
the later change can be read, and will be. With a bound that moves on, a row that changes all the time would always be
replaced by a change to come. The server is asked for each row whether there is a later `u` or `d` of its key, by an
index that has no others (a row that was inserted replaces nothing); it is not asked where a sweep has none of them, or
is one page.

*Existing rows* are copied by transactions that hold each row as a writer would. Copying all in one transaction would
block every writer; reading the table before the log would need positions of two kinds.

*Wake-ups.* `NOTIFY` makes commits wait for each other. So an idle reader sets a sequence to the time until which it
sleeps (`bell`), looks once more, and sleeps if no session has an open transaction; writers notify only until then. All
readers of a process share one look (`horizon.py`). While there is something to read, there is none.
"""
