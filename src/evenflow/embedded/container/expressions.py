"""Parses the expressions of a query (conditions, paths, literals, function calls) into functions of a document."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.embedded.container.functions import FUNCTIONS
from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.tokens import UNSUPPORTED_OPERATORS, Token, bad_query
from evenflow.embedded.container.values import both, compared, either, equal, negated, same, unequal
from evenflow.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evenflow.embedded.container.tokens import TokenCursor

Document: TypeAlias = "dict[str, Any]"
Value: TypeAlias = "Callable[[Document], Any]"
"""An expression, as a function that evaluates it for a document."""

DEPTH_MAX = 64
"""How deep conditions may be nested."""
RESERVED = frozenset(
    (
        *("AND", "AS", "ASC", "BETWEEN", "BY", "DESC", "DISTINCT", "ESCAPE", "EXISTS", "FALSE", "FROM", "GROUP"),
        *("HAVING", "IN", "JOIN", "LIKE", "LIMIT", "NOT", "NULL", "OFFSET", "OR", "ORDER", "RANK", "SELECT", "TOP"),
        *("TRUE", "UDF", "UNDEFINED", "VALUE", "WHERE"),
    )
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": equal,
    "!=": unequal,
    "<>": unequal,
    "<": compared(operator.lt),
    "<=": compared(operator.le),
    ">": compared(operator.gt),
    ">=": compared(operator.ge),
}
CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": MISSING}


class ExpressionParser:
    """Reads one expression after the other from a cursor. Of conditions, it also notes the ids that they require."""

    def __init__(self, cursor: TokenCursor, alias: str, parameters: Mapping[str, Any]) -> None:
        self._cursor = cursor
        self._alias = alias
        self._parameters = parameters
        self._depth = 0
        self._ids: list[str] = []
        self._ids_decide = True

    @property
    def required_id(self) -> str | None:
        """The id that every matching document has, if the conditions say so."""
        return self._ids[0] if self._ids and self._ids_decide else None

    def condition(self) -> Value:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise bad_query(f"its conditions are nested more than {DEPTH_MAX} deep")
        values = [self._conjunction()]
        while self._cursor.accept("OR"):
            self._ids_decide = False
            values.append(self._conjunction())
        self._depth -= 1
        return _combined(either, values)

    def _conjunction(self) -> Value:
        values = [self._negation()]
        while self._cursor.accept("AND"):
            values.append(self._negation())
        return _combined(both, values)

    def _negation(self) -> Value:
        count = 0
        while self._cursor.accept("NOT"):
            count += 1
            self._ids_decide = False
        if not count:
            return self._comparison()
        value = self._operand()
        if self.at_comparison():
            # SQL dialects differ on whether NOT binds to the value or to the comparison.
            raise Unsupported("The embedded container does not support NOT before a comparison; write NOT (...).")
        return (lambda document: negated(value(document))) if count % 2 else _as_boolean(value)

    def at_comparison(self) -> bool:
        """Whether a comparison operator comes next."""
        is_sign = self._cursor.current.kind == "sign" and self._cursor.current.text in _COMPARISONS
        return is_sign or any(self._cursor.at_word(word) for word in ("IN", "BETWEEN", "LIKE", "NOT"))

    def _comparison(self) -> Value:
        self._note_id()
        value = self._operand()
        token = self._cursor.current
        if token.kind == "sign" and token.text in _COMPARISONS:
            self._cursor.index += 1
            return _binary(_COMPARISONS[token.text], value, self._operand())
        denied = self._cursor.at_word("NOT") and self._cursor.peek(1).text.upper() in ("IN", "BETWEEN", "LIKE")
        self._cursor.index += denied
        if self._cursor.accept("IN"):
            value = self._in_list(value)
        elif self._cursor.accept("BETWEEN"):
            value = self._between(value)
        elif denied:
            self._cursor.fail()
        return (lambda document: negated(value(document))) if denied else value

    def _note_id(self) -> None:
        """Note a condition on the id, so that the query can look that id up instead of scanning all documents."""
        words = [self._cursor.peek(ahead) for ahead in range(6)]
        ends = words[5].kind in ("end", "name")
        if self._depth == 1 and ends and [word.text for word in words[:4]] == [self._alias, ".", "id", "="]:
            meant = words[4].text if words[4].kind == "text" else self._parameters.get(words[4].text)
            if isinstance(meant, str):
                self._ids.append(meant)

    def _in_list(self, value: Value) -> Value:
        self._cursor.expect_sign("(")
        choices = [self._operand()]
        while self._cursor.accept_sign(","):
            choices.append(self._operand())
        self._cursor.expect_sign(")")

        def found(document: Document) -> Any:
            mine = value(document)
            if mine is MISSING:
                return MISSING
            return any(same(mine, choice(document)) for choice in choices)

        return found

    def _between(self, value: Value) -> Value:
        low = self._operand()
        self._cursor.expect("AND")
        high = self._operand()
        least, most = _binary(_COMPARISONS[">="], value, low), _binary(_COMPARISONS["<="], value, high)
        return _binary(both, least, most)

    def _operand(self) -> Value:
        value = self._primary()
        token = self._cursor.current
        if token.kind == "sign" and token.text in UNSUPPORTED_OPERATORS and token.text not in ("[", "{"):
            raise Unsupported(f"The embedded container does not support {UNSUPPORTED_OPERATORS[token.text]}.")
        return value

    def _primary(self) -> Value:
        token = self._cursor.current
        if token.kind == "number":
            return _constant(self._number())
        if token.kind == "sign" and token.text == "-" and self._cursor.peek(1).kind == "number":
            self._cursor.index += 1
            return _constant(-self._number())
        if token.kind == "text":
            return _constant(self._cursor.advance().text)
        if token.kind == "parameter":
            return _constant(self.parameter(self._cursor.advance()))
        if self._cursor.accept_sign("("):
            value = self.condition()
            self._cursor.expect_sign(")")
            return value
        if token.kind != "name":
            self._cursor.fail()
        return self._named_value(token)

    def _named_value(self, token: Token) -> Value:
        word = token.text.upper()
        if token.text == self._alias and self._cursor.peek(1).text != "(":
            return self.path()
        if word in CONSTANTS:
            self._cursor.index += 1
            return _constant(CONSTANTS[word])
        if word in RESERVED:
            self._cursor.fail()
        if self._cursor.peek(1).text == "(":
            return self._call()
        raise bad_query(f"{token.text!r} at character {token.position + 1} is not {self._alias!r}, the alias in FROM")

    def _call(self) -> Value:
        name = self._cursor.advance().text.upper()
        function = FUNCTIONS.get(name)
        if function is None:
            raise Unsupported(f"The embedded container does not support the function {name}.")
        self._cursor.expect_sign("(")
        arguments: list[Value] = []
        while not self._cursor.accept_sign(")"):
            if arguments:
                self._cursor.expect_sign(",")
            arguments.append(self.condition())
        least, most, call = function
        if not least <= len(arguments) <= most:
            raise bad_query(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        return lambda document: call(*[argument(document) for argument in arguments])

    def path(self) -> Value:
        token = self._cursor.advance()
        if token.kind != "name" or token.text != self._alias:
            self._cursor.index -= 1
            if token.kind == "name" and token.text.upper() not in RESERVED:
                raise bad_query(f"{token.text!r} is not {self._alias!r}, the alias in FROM")
            self._cursor.fail()
        steps: list[str | int] = []
        while True:
            if self._cursor.accept_sign("."):
                steps.append(self._cursor.expect_name())
            elif self._cursor.accept_sign("["):
                steps.append(self._index())
                self._cursor.expect_sign("]")
            else:
                return _property_at(tuple(steps)) if steps else whole_document

    def _index(self) -> str | int:
        token = self._cursor.advance()
        if token.kind == "text":
            return token.text
        if token.kind == "number" and token.text.isdecimal() and len(token.text) < 10:
            return int(token.text)
        raise Unsupported("The embedded container supports only strings and whole numbers between [ and ].")

    def _number(self) -> float:
        text = self._cursor.advance().text
        number = int(text) if text.isdecimal() and len(text) < 20 else float(text)
        if number == float("inf"):
            raise bad_query(f"the number {text:.40} is too large")
        return number

    def parameter(self, token: Token) -> Any:
        if token.text not in self._parameters:
            raise bad_query(f"the parameter {token.text} has no value")
        return self._parameters[token.text]


def whole_document(document: Document) -> Any:
    return document


def _constant(value: Any) -> Value:
    return lambda document: value


def _as_boolean(value: Value) -> Value:
    """The value after two negations: a boolean, or MISSING."""
    return lambda document: negated(negated(value(document)))


def _binary(operation: Callable[[Any, Any], Any], one: Value, other: Value) -> Value:
    return lambda document: operation(one(document), other(document))


def _combined(operation: Callable[[Any, Any], Any], values: list[Value]) -> Value:
    """Combine values in a loop. Nested functions would exceed the recursion limit for long chains."""
    if len(values) == 1:
        return values[0]
    return lambda document: reduce(operation, [value(document) for value in values])


def _property_at(steps: tuple[str | int, ...]) -> Value:
    def found(document: Document) -> Any:
        value: Any = document
        for step in steps:
            if isinstance(step, str):
                if not isinstance(value, dict) or step not in value:
                    return MISSING
            elif not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        return value

    return found
