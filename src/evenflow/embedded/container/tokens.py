"""The words of a query: what a text is cut into, and how they are taken one after the other."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, NoReturn, TypeAlias

from evenflow.errors import Misconfigured, Unsupported

Sort: TypeAlias = Literal["name", "number", "text", "parameter", "sign", "end"]

QUERY_CHARACTERS_MAX = 512 * 1024
_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s+|--[^\n]*|/\*.*?\*/)+)
  | (?P<open>/\*)
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


SIGNS_OF_MORE = {
    **dict.fromkeys("+-*/%", "arithmetic"),
    **dict.fromkeys("&|^~", "operators on bits"),
    "||": "joining texts with ||",
    "??": "the operator ??",
    "?": "the operator ?:",
    "{": "objects in a query",
    "[": "lists in a query",
}
_WORDS_OF_MORE = {
    "LIKE": "LIKE",
    "EXISTS": "EXISTS",
    "JOIN": "JOIN",
    "GROUP": "GROUP BY",
    "HAVING": "HAVING",
    "DISTINCT": "DISTINCT",
    "UDF": "user-defined functions",
    "RANK": "ORDER BY RANK",
}


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
        if found is None or found.lastgroup == "open":
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


class Words:
    """The tokens of a query, taken one after the other. Where one does not fit it says so, or what would be needed."""

    def __init__(self, query: str) -> None:
        self._tokens = cut(query)
        self._next = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _peek(self, ahead: int) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _step(self) -> Token:
        token = self._token
        if token.sort == "end":
            self._stumble()
        self._next += 1
        return token

    def _is(self, word: str) -> bool:
        return self._token.sort == "name" and self._token.text.upper() == word.upper()

    def _take(self, word: str) -> bool:
        found = self._is(word)
        self._next += found
        return found

    def _demand(self, word: str) -> None:
        if not self._take(word):
            self._stumble(word)

    def _take_sign(self, sign: str) -> bool:
        found = self._token.sort == "sign" and self._token.text == sign
        self._next += found
        return found

    def _demand_sign(self, sign: str) -> None:
        if not self._take_sign(sign):
            self._stumble(sign)

    def _name(self) -> str:
        token = self._step()
        if token.sort != "name":
            self._next -= 1
            self._stumble("a name")
        return token.text

    def _stumble(self, wanted: str = "") -> NoReturn:
        token = self._token
        known = _WORDS_OF_MORE if token.sort == "name" else SIGNS_OF_MORE if token.sort == "sign" else {}
        if token.text.upper() in known:
            raise Unsupported(f"The embedded container does not support {known[token.text.upper()]}.")
        there = "it ends" if token.sort == "end" else f"there is {token.text[:40]!r}"
        place = f" at character {token.place + 1}"
        raise bad_query(f"{there}{place}" + (f", where {wanted} is expected" if wanted else ""))
