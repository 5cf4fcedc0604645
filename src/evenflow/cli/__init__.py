"""The `evenflow` command line: one module per command."""

from __future__ import annotations

import sys

EXTRA = {"typer", "rich"}


def main() -> None:
    try:
        from evenflow.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        sys.exit("error: typer and rich are not installed; run: pip install 'evenflow[cli]'")
    run()
