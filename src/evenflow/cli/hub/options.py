"""What the hub's commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer


def _check_path(path: Path) -> Path:
    scheme, colon, folder = str(path).partition(":")
    if colon and scheme == "hub" and folder and not path.exists():
        raise typer.BadParameter(f"this is a folder, not a URL; did you mean {folder}?")
    return path


HubPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PATH", help="The hub's folder.", show_default=False, callback=_check_path)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
