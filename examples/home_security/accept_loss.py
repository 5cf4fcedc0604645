"""Accept a loss: for a partition whose recent part is missing, and whose events the hub no longer has.

    python -m examples.home_security.accept_loss FOLDER PARTITION

It starts a new recent part at the oldest event of the hub, and prints what to do next. Residents see a gap.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from shlex import quote

from evenflow.errors import Corrupt, EvenflowError, Misconfigured
from examples.home_security.blobs import open_blobs
from examples.home_security.history import oldest_of
from examples.home_security.layout import LAYOUT, Recent, pack, recent_name, unpack
from examples.home_security.places import AGGREGATE, Place


async def accept_loss(place: Place, partition: str) -> int:
    """The event from which the partition is counted. Misconfigured if nothing is lost."""
    oldest = await oldest_of(place.hub, partition)
    blobs = open_blobs(place.scene().blobs)
    try:
        name = recent_name(partition)
        found = await blobs.get(name)
        if found is not None:
            try:
                has = unpack(found.data, Recent, name).upto
            except Corrupt:
                has = -1
            if has >= oldest - 1:
                raise Misconfigured(
                    f"Nothing is lost: the blob {name} has events up to {has}, and the hub those from {oldest} on."
                )
        fresh = Recent(LAYOUT, partition, 0, oldest - 1, 0, 0, {})
        await blobs.put(name, pack(fresh), found.version if found is not None else None)
        return oldest
    finally:
        blobs.close()


def main() -> int:
    if len(sys.argv) != 3:
        print(f"{__doc__}", file=sys.stderr)
        return 2
    place, partition = Place(Path(sys.argv[1])), sys.argv[2]
    try:
        oldest = asyncio.run(accept_loss(place, partition))
    except EvenflowError as error:
        print(f"accept loss: {error}", file=sys.stderr)
        return 2
    print(
        f"Partition {partition} is counted from event {oldest} on, once it is resumed:\n"
        f"evenflow group resume --source {quote(f'hub:{place.hub}')} --store {quote(f'sqlite:{place.leases}')}"
        f" --group {AGGREGATE} --partition {partition}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
