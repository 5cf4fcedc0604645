"""The SQLite store: one file for leases, one for progress and effects, both in a folder of one machine.

- Heartbeats are not synced to the disk; swaps and commits are. A heartbeat that a power loss takes back is not missed,
  since every process that saw it lost its power too. The first heartbeat of an incarnation is synced.
- An open transaction of the application has the thread of `progress.sqlite` for itself, from BEGIN to COMMIT. Other
  work waits in line and cannot become part of it, without a lock. That thread also keeps the deadline, even while the
  event loop is blocked.
- An authorizer guards the transaction, not an inspection of the SQL. Setting it makes SQLite ask again about cached
  statements, so a COMMIT that the store ran before is refused to the application. `OR ROLLBACK` cannot be refused; it
  is noticed afterwards.
- Progress is written before leases when the two files are created or their history is raised: the history in progress
  is never below the one that instances have seen.
"""
