"""Splits a query into tokens, and reads them one after the other."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, NoReturn, TypeAlias

from evenflow.errors import Misconfigured, Unsupported

TokenKind: TypeAlias = Literal["name", "number", "text", "parameter", "sign", "end"]

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


UNSUPPORTED_OPERATORS = {
    **dict.fromkeys("+-*/%", "arithmetic"),
    **dict.fromkeys("&|^~", "bitwise operators"),
    "||": "string concatenation with ||",
    "??": "the operator ??",
    "?": "the operator ?:",
    "{": "object literals",
    "[": "array literals",
}
_UNSUPPORTED_KEYWORDS = {
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
    kind: TokenKind
    text: str
    """As written in the query; for a string literal, its value."""
    position: int


def bad_query(why: str) -> Misconfigured:
    return Misconfigured(f"The query is invalid: {why}.")


def tokenize(query: str) -> list[Token]:
    if len(query) > QUERY_CHARACTERS_MAX:
        raise bad_query(f"it has {len(query):,} characters, and the maximum is {QUERY_CHARACTERS_MAX:,}")
    tokens: list[Token] = []
    position = 0
    while position < len(query):
        found = _TOKEN.match(query, position)
        if found is None or found.lastgroup == "open":
            raise bad_query(f"there is {query[position : position + 10]!r} at character {position + 1}")
        kind = found.lastgroup
        if kind != "space":
            text = found.group()
            value = _unquoted(text) if kind == "text" else text
            tokens.append(Token(kind, value, position))  # type: ignore[arg-type]
        position = found.end()
    return [*tokens, Token("end", "", position)]


def _unquoted(quoted: str) -> str:
    def unescaped(found: re.Match[str]) -> str:
        escape = found.group(1)
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    value = _ESCAPE.sub(unescaped, quoted[1:-1])
    # A surrogate pair may be written as two escapes; a lone surrogate is replaced.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TokenCursor:
    """Reads the tokens of a query. An unexpected token raises `Misconfigured`, an unsupported one `Unsupported`."""

    def __init__(self, query: str) -> None:
        self.tokens = tokenize(query)
        self.index = 0

    @property
    def current(self) -> Token:
        return self.tokens[self.index]

    def peek(self, ahead: int) -> Token:
        return self.tokens[min(self.index + ahead, len(self.tokens) - 1)]

    def advance(self) -> Token:
        token = self.current
        if token.kind == "end":
            self.fail()
        self.index += 1
        return token

    def at_word(self, word: str) -> bool:
        return self.current.kind == "name" and self.current.text.upper() == word.upper()

    def accept(self, word: str) -> bool:
        found = self.at_word(word)
        self.index += found
        return found

    def expect(self, word: str) -> None:
        if not self.accept(word):
            self.fail(word)

    def accept_sign(self, sign: str) -> bool:
        found = self.current.kind == "sign" and self.current.text == sign
        self.index += found
        return found

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            self.fail(sign)

    def expect_name(self) -> str:
        token = self.advance()
        if token.kind != "name":
            self.index -= 1
            self.fail("a name")
        return token.text

    def fail(self, wanted: str = "") -> NoReturn:
        token = self.current
        known = _UNSUPPORTED_KEYWORDS if token.kind == "name" else UNSUPPORTED_OPERATORS if token.kind == "sign" else {}
        if token.text.upper() in known:
            raise Unsupported(f"The embedded container does not support {known[token.text.upper()]}.")
        there = "it ends" if token.kind == "end" else f"there is {token.text[:40]!r}"
        position = f" at character {token.position + 1}"
        raise bad_query(f"{there}{position}" + (f", where {wanted} is expected" if wanted else ""))
