"""The embedded container: JSON documents in a folder, with a change feed. It knows nothing of leases or groups.

- *One file per container.* A split or merge moves documents and log rows to the children in one transaction, and no
  reader sees half of it. Writers wait for each other; what many threads write at once shares a commit
  (`write_queue.py`).
- *LSNs are counted per range*, one per change, without gaps: so lag can be counted. Children continue from the
  greatest LSN of their parents, and documents keep theirs. After a merge two documents may have the same LSN, one from
  each parent, so a page never ends inside an LSN; and a reader resumes in a merged range by the part that it had read
  (`within=`), with the LSN of that part.
- *A page that is not full goes up to the range's last LSN*, even if the last change in it is older: what another part
  of the range did, or what was overwritten, is not read again.
- *Floors of the log* (up to where retention has trimmed it) are kept for parts of a range, for the same reason: after
  a merge there are two logs in one range.
- *Ranges that no longer exist stay in the table*, so that a reader learns which ones replaced them. A range names all
  its ancestors, since a client may have slept through several generations.
- *A document is stored as the JSON that is answered*, system properties included: reading and the feed join bytes.
- *An expiry by time is a change*: it happens in a write, or when all versions are read. Until then no reader sees the
  document.
"""

from evenflow.embedded.container.container import Container, ContainerInfo
from evenflow.embedded.container.feed import ChangeFeedPage, DocumentChange
from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.ranges import PartitionKeyRange

__all__ = ["MISSING", "ChangeFeedPage", "Container", "ContainerInfo", "DocumentChange", "PartitionKeyRange"]
