"""The embedded container as a source: its change feed, range by range.

- A range is a partition under its id, which no other range ever gets, so "ended" is final. A reader holds one creation
  of the container and never reads another.
- A position in a merged range has parts (`positions.py`), an LSN for each, because its parents' logs had LSNs of their
  own. The part that is furthest behind is read first, up to where the next part is; then the two become one. Two
  changes with the same LSN have EPKs of different parents, so the position between them has two parts as well,
  whatever is overwritten meanwhile.
- An event has a sequence only where its position is one LSN. The pump drops repeated events by their sequence, and
  while parts are read LSNs do not only grow. A batch's resume position always has a sequence, the lowest, for lag.
- `oldest` is where the log was trimmed, not the first change that is there: what was overwritten or merged is not
  missing, and must not look like a loss.
- A page of latest versions is read in one step of SQLite, as lines of JSON: the interpreter is free during a step, but
  not between two, so rows one by one would never be read beside a handler that runs. What lines cannot represent (two
  changes with one LSN, large documents) is read row by row.
"""
