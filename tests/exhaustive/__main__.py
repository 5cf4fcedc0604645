"""`python -m tests.exhaustive [--deeper N] [NAME ...]`: searches what `make test` does, N ticks further, and more."""

from __future__ import annotations

import argparse
import sys
import time

from msgspec.structs import replace

from tests.exhaustive.scenarios import DEEPER, SCENARIOS, searched


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustive", description=__doc__)
    parser.add_argument("--deeper", type=int, nargs="?", const=1, default=0, metavar="TICKS", help="how much further")
    parser.add_argument("names", nargs="*", help="scenarios that begin so; all, if none is given")
    options = parser.parse_args()
    broken = 0
    for name, (bounds, *_) in (SCENARIOS | DEEPER if options.deeper else SCENARIOS).items():
        if options.names and not name.startswith(tuple(options.names)):
            continue
        began_s = time.process_time()
        found, _ = searched(replace(bounds, ticks=bounds.ticks + options.deeper))
        broken += bool(found.violation)
        print(f"{name}: {found} ({time.process_time() - began_s:.1f} s)", flush=True)
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
