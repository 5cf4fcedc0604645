"""The operator console: a live web page on one group or on all groups of a store.

It needs the extra `console`. `evenflow console` serves it; `Console` is an ASGI application that other programs can
mount.
"""

from evenflow.errors import Misconfigured

try:
    import starlette  # noqa: F401 - checks that the extra is installed
except ModuleNotFoundError as error:
    raise Misconfigured("The console needs the extra 'console': pip install 'evenflow[console]'.") from error

from evenflow.console.access import LOOPBACK_NAMES, ConsoleAccess, is_loopback
from evenflow.console.app import Console
from evenflow.console.custom_actions import ActionCall, ActionResult, CustomAction, CustomFigure
from evenflow.console.serving import serve
from evenflow.console.watch import Subject

__all__ = [
    "LOOPBACK_NAMES",
    "ActionCall",
    "ActionResult",
    "Console",
    "ConsoleAccess",
    "CustomAction",
    "CustomFigure",
    "Subject",
    "is_loopback",
    "serve",
]
