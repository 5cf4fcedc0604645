"""The words of a query: what a text is cut into before it is read."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from evenflow.errors import Misconfigured

Sort: TypeAlias = Literal["name", "number", "text", "parameter", "sign", "end"]

QUERY_CHARACTERS_MAX = 512 * 1024
_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s+|--[^\n]*|/\*.*?\*/)+)
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<parameter>@[A-Za-z0-9_]+)
  | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
  | (?P<sign><>|!=|<=|>=|\|\||\?\?|[=<>(),.\[\]{}*+\-/%?:&|^~])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Token(NamedTuple):
    sort: Sort
    text: str
    """As it is written; of a text what it says."""
    place: int


def bad_query(why: str) -> Misconfigured:
    return Misconfigured(f"The query cannot be read: {why}.")


def cut(query: str) -> list[Token]:
    if len(query) > QUERY_CHARACTERS_MAX:
        raise bad_query(f"it has more than {QUERY_CHARACTERS_MAX:,} characters")
    tokens: list[Token] = []
    place = 0
    while place < len(query):
        found = _TOKEN.match(query, place)
        if found is None:
            raise bad_query(f"there is {query[place : place + 10]!r} at character {place + 1}")
        sort = found.lastgroup
        if sort != "space":
            text = found.group()
            said = _said(text) if sort == "text" else text
            tokens.append(Token(sort, said, place))  # type: ignore[arg-type]
        place = found.end()
    return [*tokens, Token("end", "", place)]


def _said(quoted: str) -> str:
    def meant(found: re.Match[str]) -> str:
        escape = found.group(1)
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    said = _ESCAPE.sub(meant, quoted[1:-1])
    # Two halves of one character may have been written one after the other; a half alone is none.
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
