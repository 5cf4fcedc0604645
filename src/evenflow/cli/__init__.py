"""The command line: one file a command, and the place where everything is wired."""

from __future__ import annotations

import sys

EXTRA = {"typer", "rich"}


def main() -> None:
    try:
        from evenflow.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        sys.exit("error: the command line needs two more packages: pip install 'evenflow[cli]'")
    run()
