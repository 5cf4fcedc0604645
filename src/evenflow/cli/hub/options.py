"""Options that the commands for hubs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer


def _check_path(path: Path) -> Path:
    scheme, colon, folder = str(path).partition(":")
    if colon and scheme == "hub" and folder and not path.exists():
        raise typer.BadParameter(f"{path} is a URL; pass the folder: {folder}.")
    return path


HubPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PATH", help="Folder of the hub.", show_default=False, callback=_check_path)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
