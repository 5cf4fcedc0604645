"""Redis streams as a source.

- A query is a script, and the blocking read is only a wake-up. The entries and the state of the stream are of one
  moment, so that it is known whether entries were removed before they were read. A position's sequence is the server's
  count of entries, continued from position to position, so it never goes back, whatever is deleted in between.
- The driver may lose a cancellation while it connects. So a wake-up that was given up is never awaited.
"""
