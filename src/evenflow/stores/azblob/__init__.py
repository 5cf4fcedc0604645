"""The Azure Blob store, in the layout of Azure's own processors for Event Hubs.

Two blobs cannot change in one step here, which decides the order of everything:

- Every heartbeat renews every lease of its owner *before* it lists the group, and writes the heartbeat's counter into
  the lease itself. A lease that the listing shows as one's own without this counter was passed on just now; it is
  renewed before it is reported. So a takeover that is conditional on the lease's ETag is conditional on the lease and
  on its owner's sign of life at once.
- A missing record proves a loss of the history in which it was last seen, not of the history in which it is missed.
  Otherwise each record of one loss would count as a loss of its own. What is restored has `restore_epoch(history)`,
  which no lease was ever given. A ledger is listed under the very history that its cursor has: a heartbeat in which
  the history rose lists again.
- Azure's own processors appear as third-party members with incarnation 0, made from the leases that they own.
"""
