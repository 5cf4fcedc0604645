"""What the hub's commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

HubPath: TypeAlias = Annotated[Path, typer.Argument(metavar="PATH", help="The hub's folder.", show_default=False)]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
