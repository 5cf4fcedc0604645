"""A local Cosmos DB: embedded containers behind the REST interface that official clients of Azure Cosmos DB speak.

`evenflow container serve` and `evenflow.testing.cosmos` run it.

- *The server keeps no state.* Every request reads what it needs from the container's file. So splits by another
  process, or documents written past the server, are visible at once, and a read sees every acknowledged write: every
  session token is satisfied.
- *Queries over all ranges are answered by the server*, in one order: no query plans, no merging in the client. An
  order needs a pass over all documents for every page, and no more memory than a page.
- *The key is checked on loopback, too*, though it is public: a page in a browser cannot sign.
"""
