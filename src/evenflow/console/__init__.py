"""The operator console: a web page on one group or all groups of a store, live, from ports and `observe` alone.

It comes with the extra `console`. `evenflow console` serves it; `Console` is an ASGI application for programs that want
it among their own pages.
"""

from evenflow.errors import Misconfigured

try:
    import starlette  # noqa: F401 - the extra is there, or not
except ModuleNotFoundError as error:
    raise Misconfigured("The console needs the extra console: pip install 'evenflow[console]'.") from error

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
