"""Parses queries: a small subset of Cosmos DB's SQL, compiled into functions of a document.

What the subset lacks raises `Unsupported` and is named. Invalid queries raise `Misconfigured`.

    SELECT [TOP n] * | VALUE COUNT(1) | VALUE c.a.b | c.a.b [[AS] name], ...   FROM c
    [WHERE condition] [ORDER BY c.a.b [ASC | DESC]] [OFFSET n LIMIT n]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evenflow.embedded.container.expressions import CONSTANTS, RESERVED, ExpressionParser, whole_document
from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.tokens import TokenCursor, bad_query
from evenflow.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.embedded.container.expressions import Document, Value


class QueryOrder(Struct, frozen=True):
    value: Value
    descending: bool


class Query(Struct, frozen=True, kw_only=True):
    """A parsed query."""

    matches: Value | None
    """The WHERE condition; None if there is none."""
    result: Value
    """The result for a document; MISSING if it has none."""
    is_count: bool = False
    order: QueryOrder | None = None
    limit: int | None = None
    offset: int = 0
    id: str | None = None
    """The only id that can match; None if several can."""


def read_query(text: str, parameters: Mapping[str, Any] | None = None) -> Query:
    return _QueryParser(text, parameters or {}).query()


class _QueryParser:
    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self._cursor = TokenCursor(text)
        self._alias = self._find_alias()
        self._expressions = ExpressionParser(self._cursor, self._alias, parameters)

    def query(self) -> Query:
        self._cursor.expect("SELECT")
        top = self._whole_number("TOP") if self._cursor.accept("TOP") else None
        result, is_count = self._select_clause()
        self._from_clause()
        matches = self._expressions.condition() if self._cursor.accept("WHERE") else None
        order = self._order_by_clause()
        offset, limit = self._offset_limit_clause()
        if self._cursor.current.kind != "end":
            self._cursor.fail()
        if top is not None and limit is not None:
            raise bad_query("TOP cannot be combined with OFFSET LIMIT")
        if is_count and (order is not None or limit is not None or top is not None):
            raise Unsupported("The embedded container does not support ORDER BY, TOP or OFFSET LIMIT with COUNT.")
        return Query(
            matches=matches,
            result=result,
            is_count=is_count,
            order=order,
            limit=top if top is not None else limit,
            offset=offset,
            id=self._expressions.required_id,
        )

    # SELECT and FROM

    def _select_clause(self) -> tuple[Value, bool]:
        if self._cursor.accept_sign("*"):
            return whole_document, False
        if not self._cursor.accept("VALUE"):
            return self._select_list(), False
        if self._cursor.at_word("COUNT") and self._cursor.peek(1).text == "(":
            self._cursor.index += 2
            if self._cursor.current.kind != "number":
                raise Unsupported("The embedded container supports COUNT(1) only.")
            self._cursor.index += 1
            self._cursor.expect_sign(")")
            return whole_document, True
        return self._selected_path(), False

    def _selected_path(self) -> Value:
        """A selected path. Other expressions are not supported and raise an error that says so."""
        token = self._cursor.current
        begins = token.kind in ("number", "text", "parameter") or (token.kind == "sign" and token.text in ("(", "-"))
        if begins or (token.kind == "name" and token.text.upper() in (*CONSTANTS, "NOT")):
            raise Unsupported("The embedded container does not support constants and expressions in SELECT.")
        value = self._selected_value()
        if self._expressions.at_comparison() or self._cursor.at_word("AND") or self._cursor.at_word("OR"):
            raise Unsupported("The embedded container does not support conditions in SELECT.")
        return value

    def _selected_value(self) -> Value:
        cursor = self._cursor
        if cursor.current.kind == "name" and not cursor.at_word(self._alias) and cursor.peek(1).text == "(":
            raise Unsupported(f"The embedded container does not support {cursor.current.text}() in SELECT.")
        return self._expressions.path()

    def _select_list(self) -> Value:
        """A list of paths, whose result is an object of their values."""
        named: dict[str, Value] = {}
        while True:
            name = self._last_path_step()
            value = self._selected_path()
            is_named = self._cursor.current.kind == "name" and self._cursor.current.text.upper() not in RESERVED
            if self._cursor.accept("AS") or is_named:
                name = self._cursor.expect_name()
            if name in named:
                raise bad_query(f"two values are selected as {name!r}; rename one with AS")
            named[name] = value
            if not self._cursor.accept_sign(","):
                break

        def found(document: Document) -> Any:
            values = {name: value(document) for name, value in named.items()}
            return {name: value for name, value in values.items() if value is not MISSING}

        return found

    def _last_path_step(self) -> str:
        """The last step of the path that comes next, which names its value in the result."""
        place, last = self._cursor.index + 1, self._cursor.current.text
        while self._cursor.tokens[place].text in (".", "[") and self._cursor.tokens[place].kind == "sign":
            last = self._cursor.tokens[place + 1].text
            place += 3 if self._cursor.tokens[place].text == "[" else 2
            if place >= len(self._cursor.tokens):
                break
        return last

    def _find_alias(self) -> str:
        """The alias of documents, which FROM defines after SELECT uses it."""
        words = self._word_positions()
        if self._has_subquery():
            raise Unsupported("The embedded container does not support subqueries.")
        if "FROM" in words and "JOIN" in words:
            # Reported first: SELECT may use the alias of the JOIN, which would look like an unknown name.
            raise Unsupported("The embedded container does not support JOIN in FROM.")
        if "FROM" in words:
            return self._alias_at(words["FROM"] + 1)
        if self._cursor.current.kind == "name" and self._cursor.current.text.upper() == "SELECT":
            raise Unsupported("The embedded container does not support queries without FROM.")
        raise bad_query("it must begin with SELECT and have a FROM")

    def _has_subquery(self) -> bool:
        """Whether there is a subquery. Checked first, since the first FROM may belong to it."""
        pairs = zip(self._cursor.tokens, self._cursor.tokens[1:], strict=False)
        return any(
            (left.kind, left.text, right.kind, right.text.upper()) == ("sign", "(", "name", "SELECT")
            for left, right in pairs
        )

    def _word_positions(self) -> dict[str, int]:
        """The names that are not steps of a path, in capitals, with the index of their first token."""
        found: dict[str, int] = {}
        for place, token in enumerate(self._cursor.tokens):
            is_step = place > 0 and self._cursor.tokens[place - 1].text == "."
            if token.kind == "name" and not is_step:
                found.setdefault(token.text.upper(), place)
        return found

    def _alias_at(self, place: int) -> str:
        name, after = self._cursor.tokens[place], self._cursor.tokens[min(place + 1, len(self._cursor.tokens) - 1)]
        if name.kind != "name" or name.text.upper() in RESERVED:
            self._cursor.index = place
            self._cursor.fail()
        if after.kind == "name" and after.text.upper() == "AS":
            after = self._cursor.tokens[min(place + 2, len(self._cursor.tokens) - 1)]
        return after.text if after.kind == "name" and after.text.upper() not in RESERVED else name.text

    def _from_clause(self) -> None:
        self._cursor.expect("FROM")
        self._cursor.index += 1
        self._cursor.accept("AS")
        if self._cursor.current.kind == "name" and self._cursor.current.text == self._alias:
            self._cursor.index += 1
        if self._cursor.at_word("IN"):
            raise Unsupported("The embedded container does not support IN in FROM.")
        if self._cursor.current.text in (".", "[", ",") and self._cursor.current.kind == "sign":
            raise Unsupported("The embedded container supports only FROM with one container.")

    def _order_by_clause(self) -> QueryOrder | None:
        if not self._cursor.accept("ORDER"):
            return None
        self._cursor.expect("BY")
        value = self._selected_value()
        descending = self._cursor.accept("DESC")
        if not descending:
            self._cursor.accept("ASC")
        if self._cursor.current.text == ",":
            raise Unsupported("The embedded container does not support ORDER BY more than one path.")
        return QueryOrder(value, descending)

    def _offset_limit_clause(self) -> tuple[int, int | None]:
        if not self._cursor.accept("OFFSET"):
            return 0, None
        offset = self._whole_number("OFFSET")
        self._cursor.expect("LIMIT")
        return offset, self._whole_number("LIMIT")

    def _whole_number(self, of: str) -> int:
        token = self._cursor.advance()
        value = self._expressions.parameter(token) if token.kind == "parameter" else token.text
        if isinstance(value, bool) or not str(value).isascii() or not str(value).isdecimal() or len(str(value)) > 9:
            raise bad_query(f"{of} needs a whole number")
        return int(value)
