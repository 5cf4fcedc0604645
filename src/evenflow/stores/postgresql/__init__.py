"""The PostgreSQL store: each request is one call of a function in a schema of its own.

- Heartbeats are synced to the disk, and must be. The server's clients outlive its crash, so a heartbeat that a crash
  takes back is a cursor from the future, and the history would rise.
- A revision is taken under the group's row lock, which is held until the commit. A sequence would give numbers to
  transactions that commit late, and an instance that asked in between would never hear of them.
- A connection is never cancelled half-way. A request is a task of its own; giving it up means closing the socket,
  which ends the driver's wait at once and in a defined state.
"""
