"""The Redis store: each request is one Lua script.

- The driver sends nothing twice; its retries are off. A swap that took effect, lost its answer and was sent again by
  the driver would be reported as refused.
- A script never parses JSON. Lua's numbers have 53 bits and its JSON 14 digits. What a script decides on stands in
  lines before the JSON; numbers of 64 bits are two halves.
- A cursor's lineage names the run of the server that gave it (its *term*), and the group remembers where each term
  ended. A revision alone would prove nothing once others have written past it; after a failover they do so before the
  one returns that saw what was lost. A script that lets the revision grow must notice a new run first.
- Leases wait after a restart (`is_quiet` in the scripts) until every member has reported what it saw. Raising the
  history later is too late for a lease that was given away meanwhile, under an epoch that another owner already had.
"""
