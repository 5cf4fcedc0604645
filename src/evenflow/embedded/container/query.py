"""Queries: a small part of Cosmos DB's SQL, read into functions of a document. What is not part of it raises
`Unsupported` and says what it is; a text that is no query raises `Misconfigured`.

    SELECT [TOP n] * | VALUE COUNT(1) | VALUE c.a.b | c.a.b [[AS] name], ...   FROM c
    [WHERE condition] [ORDER BY c.a.b [ASC | DESC]] [OFFSET n LIMIT n]
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from evenflow.embedded.container.functions import FUNCTIONS
from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.tokens import SIGNS_OF_MORE, Token, Words, bad_query
from evenflow.embedded.container.values import both, compared, either, equal, negated, same, unequal
from evenflow.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Document: TypeAlias = "dict[str, Any]"
Value: TypeAlias = "Callable[[Document], Any]"
"""What an expression is for a document."""

DEPTH_MAX = 64
"""How deep conditions may be nested."""
_RESERVED = frozenset(
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
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": MISSING}


class Order(Struct, frozen=True):
    value: Value
    descending: bool


class Query(Struct, frozen=True, kw_only=True):
    """A query that was read."""

    matches: Value | None
    """True for the documents that it is about; None: for all."""
    result: Value
    """What is answered for a document; MISSING: nothing."""
    is_count: bool = False
    order: Order | None = None
    limit: int | None = None
    offset: int = 0
    id: str | None = None
    """Only documents with this id can match; None: with any."""


def read_query(text: str, parameters: Mapping[str, Any] | None = None) -> Query:
    return _Reading(text, parameters or {}).query()


class _Reading(Words):
    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(text)
        self._parameters = parameters
        self._alias = self._find_alias()
        self._depth = 0
        self._ids: list[str] = []
        self._ids_decide = True

    def query(self) -> Query:
        self._demand("SELECT")
        top = self._whole("TOP") if self._take("TOP") else None
        result, is_count = self._selected()
        self._from()
        matches = self._condition() if self._take("WHERE") else None
        order = self._order()
        offset, limit = self._paging()
        if self._token.sort != "end":
            self._stumble()
        if top is not None and limit is not None:
            raise bad_query("TOP and OFFSET LIMIT do not go together")
        if is_count and (order is not None or limit is not None or top is not None):
            raise Unsupported("The embedded container does not support ORDER BY, TOP or OFFSET LIMIT beside COUNT.")
        return Query(
            matches=matches,
            result=result,
            is_count=is_count,
            order=order,
            limit=top if top is not None else limit,
            offset=offset,
            id=self._ids[0] if self._ids and self._ids_decide else None,
        )

    # What is selected, and from where

    def _selected(self) -> tuple[Value, bool]:
        if self._take_sign("*"):
            return _itself, False
        if not self._take("VALUE"):
            return self._named(), False
        if self._is("COUNT") and self._peek(1).text == "(":
            self._next += 2
            if self._token.sort != "number":
                raise Unsupported("The embedded container supports COUNT(1) alone of all that can be counted.")
            self._next += 1
            self._demand_sign(")")
            return _itself, True
        return self._selected_path(), False

    def _selected_path(self) -> Value:
        """Of all that may be selected, paths alone are: what else would be an expression is told as that."""
        token = self._token
        begins = token.sort in ("number", "text", "parameter") or (token.sort == "sign" and token.text in ("(", "-"))
        if begins or (token.sort == "name" and token.text.upper() in (*_CONSTANTS, "NOT")):
            raise Unsupported("The embedded container does not support constants and expressions in SELECT.")
        value = self._selected_value()
        if self._compares() or self._is("AND") or self._is("OR"):
            raise Unsupported("The embedded container does not support conditions in SELECT.")
        return value

    def _selected_value(self) -> Value:
        if self._token.sort == "name" and not self._is(self._alias) and self._peek(1).text == "(":
            raise Unsupported(f"The embedded container does not support {self._token.text}() in SELECT.")
        return self._path()

    def _named(self) -> Value:
        """A list of paths makes an object of their values."""
        named: dict[str, Value] = {}
        while True:
            name = self._name_of_path()
            value = self._selected_path()
            is_named = self._token.sort == "name" and self._token.text.upper() not in _RESERVED
            if self._take("AS") or is_named:
                name = self._name()
            if name in named:
                raise bad_query(f"two values are selected as {name!r}; give one another name with AS")
            named[name] = value
            if not self._take_sign(","):
                break

        def found(document: Document) -> Any:
            values = {name: value(document) for name, value in named.items()}
            return {name: value for name, value in values.items() if value is not MISSING}

        return found

    def _name_of_path(self) -> str:
        """Of a path that comes next: its last step, under which its value is answered."""
        place, last = self._next + 1, self._token.text
        while self._tokens[place].text in (".", "[") and self._tokens[place].sort == "sign":
            last = self._tokens[place + 1].text
            place += 3 if self._tokens[place].text == "[" else 2
            if place >= len(self._tokens):
                break
        return last

    def _find_alias(self) -> str:
        """What documents are called, which comes after they are spoken of."""
        words = self._words()
        if self._has_query_inside():
            raise Unsupported("The embedded container does not support queries inside a query.")
        if "FROM" in words and "JOIN" in words:
            # Told before anything else: what it names in SELECT is not known here.
            raise Unsupported("The embedded container does not support JOIN in FROM.")
        if "FROM" in words:
            return self._alias_at(words["FROM"] + 1)
        if self._token.sort == "name" and self._token.text.upper() == "SELECT":
            raise Unsupported("The embedded container does not support queries without FROM.")
        raise bad_query("it begins with SELECT, and has a FROM")

    def _has_query_inside(self) -> bool:
        """Told before anything else, since the first FROM may be its own."""
        pairs = zip(self._tokens, self._tokens[1:], strict=False)
        return any(
            (left.sort, left.text, right.sort, right.text.upper()) == ("sign", "(", "name", "SELECT")
            for left, right in pairs
        )

    def _words(self) -> dict[str, int]:
        """Names that are no steps of a path, in capitals, and where each comes first."""
        found: dict[str, int] = {}
        for place, token in enumerate(self._tokens):
            is_step = place > 0 and self._tokens[place - 1].text == "."
            if token.sort == "name" and not is_step:
                found.setdefault(token.text.upper(), place)
        return found

    def _alias_at(self, place: int) -> str:
        name, after = self._tokens[place], self._tokens[min(place + 1, len(self._tokens) - 1)]
        if name.sort != "name" or name.text.upper() in _RESERVED:
            self._next = place
            self._stumble()
        if after.sort == "name" and after.text.upper() == "AS":
            after = self._tokens[min(place + 2, len(self._tokens) - 1)]
        return after.text if after.sort == "name" and after.text.upper() not in _RESERVED else name.text

    def _from(self) -> None:
        self._demand("FROM")
        self._next += 1
        self._take("AS")
        if self._token.sort == "name" and self._token.text == self._alias:
            self._next += 1
        if self._is("IN"):
            raise Unsupported("The embedded container does not support IN in FROM.")
        if self._token.text in (".", "[", ",") and self._token.sort == "sign":
            raise Unsupported("The embedded container supports FROM one container alone.")

    def _order(self) -> Order | None:
        if not self._take("ORDER"):
            return None
        self._demand("BY")
        value = self._selected_value()
        descending = self._take("DESC")
        if not descending:
            self._take("ASC")
        if self._token.text == ",":
            raise Unsupported("The embedded container does not support ORDER BY more than one path.")
        return Order(value, descending)

    def _paging(self) -> tuple[int, int | None]:
        if not self._take("OFFSET"):
            return 0, None
        offset = self._whole("OFFSET")
        self._demand("LIMIT")
        return offset, self._whole("LIMIT")

    def _whole(self, of: str) -> int:
        token = self._step()
        value = self._parameter(token) if token.sort == "parameter" else token.text
        if isinstance(value, bool) or not str(value).isascii() or not str(value).isdecimal() or len(str(value)) > 9:
            raise bad_query(f"{of} is followed by a whole number")
        return int(value)

    # Conditions

    def _condition(self) -> Value:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise bad_query(f"its conditions are nested more than {DEPTH_MAX} deep")
        values = [self._conjunction()]
        while self._take("OR"):
            self._ids_decide = False
            values.append(self._conjunction())
        self._depth -= 1
        return _chained(either, values)

    def _conjunction(self) -> Value:
        values = [self._negation()]
        while self._take("AND"):
            values.append(self._negation())
        return _chained(both, values)

    def _negation(self) -> Value:
        count = 0
        while self._take("NOT"):
            count += 1
            self._ids_decide = False
        if not count:
            return self._comparison()
        value = self._operand()
        if self._compares():
            # Whether NOT is of the value or of the comparison is not the same everywhere.
            raise Unsupported("The embedded container does not support NOT before a comparison; write NOT (...).")
        return (lambda document: negated(value(document))) if count % 2 else _truth(value)

    def _compares(self) -> bool:
        """Whether a comparison goes on here."""
        is_sign = self._token.sort == "sign" and self._token.text in _COMPARISONS
        return is_sign or any(self._is(word) for word in ("IN", "BETWEEN", "LIKE", "NOT"))

    def _comparison(self) -> Value:
        self._note_id()
        value = self._operand()
        token = self._token
        if token.sort == "sign" and token.text in _COMPARISONS:
            self._next += 1
            return _joined(_COMPARISONS[token.text], value, self._operand())
        denied = self._is("NOT") and self._peek(1).text.upper() in ("IN", "BETWEEN", "LIKE")
        self._next += denied
        if self._take("IN"):
            value = self._among(value)
        elif self._take("BETWEEN"):
            value = self._between(value)
        elif denied:
            self._stumble()
        return (lambda document: negated(value(document))) if denied else value

    def _note_id(self) -> None:
        """That an id is asked for is worth knowing: such documents are found without a look at all others."""
        words = [self._peek(ahead) for ahead in range(6)]
        ends = words[5].sort in ("end", "name")
        if self._depth == 1 and ends and [word.text for word in words[:4]] == [self._alias, ".", "id", "="]:
            meant = words[4].text if words[4].sort == "text" else self._parameters.get(words[4].text)
            if isinstance(meant, str):
                self._ids.append(meant)

    def _among(self, value: Value) -> Value:
        self._demand_sign("(")
        choices = [self._operand()]
        while self._take_sign(","):
            choices.append(self._operand())
        self._demand_sign(")")

        def found(document: Document) -> Any:
            mine = value(document)
            if mine is MISSING:
                return MISSING
            return any(same(mine, choice(document)) for choice in choices)

        return found

    def _between(self, value: Value) -> Value:
        low = self._operand()
        self._demand("AND")
        high = self._operand()
        least, most = _joined(_COMPARISONS[">="], value, low), _joined(_COMPARISONS["<="], value, high)
        return _joined(both, least, most)

    def _operand(self) -> Value:
        value = self._simple()
        token = self._token
        if token.sort == "sign" and token.text in SIGNS_OF_MORE and token.text not in ("[", "{"):
            raise Unsupported(f"The embedded container does not support {SIGNS_OF_MORE[token.text]}.")
        return value

    def _simple(self) -> Value:
        token = self._token
        if token.sort == "number":
            return _constant(self._number())
        if token.sort == "sign" and token.text == "-" and self._peek(1).sort == "number":
            self._next += 1
            return _constant(-self._number())
        if token.sort == "text":
            return _constant(self._step().text)
        if token.sort == "parameter":
            return _constant(self._parameter(self._step()))
        if self._take_sign("("):
            value = self._condition()
            self._demand_sign(")")
            return value
        if token.sort != "name":
            self._stumble()
        return self._of_name(token)

    def _of_name(self, token: Token) -> Value:
        word = token.text.upper()
        if token.text == self._alias and self._peek(1).text != "(":
            return self._path()
        if word in _CONSTANTS:
            self._next += 1
            return _constant(_CONSTANTS[word])
        if word in _RESERVED:
            self._stumble()
        if self._peek(1).text == "(":
            return self._call()
        raise bad_query(f"{token.text!r} at character {token.place + 1} is not what FROM names, {self._alias!r}")

    def _call(self) -> Value:
        name = self._step().text.upper()
        function = FUNCTIONS.get(name)
        if function is None:
            raise Unsupported(f"The embedded container does not support the function {name}.")
        self._demand_sign("(")
        arguments: list[Value] = []
        while not self._take_sign(")"):
            if arguments:
                self._demand_sign(",")
            arguments.append(self._condition())
        least, most, call = function
        if not least <= len(arguments) <= most:
            raise bad_query(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        return lambda document: call(*[argument(document) for argument in arguments])

    def _path(self) -> Value:
        token = self._step()
        if token.sort != "name" or token.text != self._alias:
            self._next -= 1
            if token.sort == "name" and token.text.upper() not in _RESERVED:
                raise bad_query(f"{token.text!r} is not what FROM names, {self._alias!r}")
            self._stumble()
        steps: list[str | int] = []
        while True:
            if self._take_sign("."):
                steps.append(self._name())
            elif self._take_sign("["):
                steps.append(self._index())
                self._demand_sign("]")
            else:
                return _at(tuple(steps)) if steps else _itself

    def _index(self) -> str | int:
        token = self._step()
        if token.sort == "text":
            return token.text
        if token.sort == "number" and token.text.isdecimal() and len(token.text) < 10:
            return int(token.text)
        raise Unsupported("The embedded container supports texts and whole numbers alone between [ and ].")

    def _number(self) -> float:
        text = self._step().text
        number = int(text) if text.isdecimal() and len(text) < 20 else float(text)
        if number == float("inf"):
            raise bad_query(f"the number {text:.40} is too large")
        return number

    def _parameter(self, token: Token) -> Any:
        if token.text not in self._parameters:
            raise bad_query(f"the parameter {token.text} has no value")
        return self._parameters[token.text]


def _itself(document: Document) -> Any:
    return document


def _constant(value: Any) -> Value:
    return lambda document: value


def _truth(value: Value) -> Value:
    """What NOT NOT makes of a value."""
    return lambda document: negated(negated(value(document)))


def _joined(operation: Callable[[Any, Any], Any], one: Value, other: Value) -> Value:
    return lambda document: operation(one(document), other(document))


def _chained(operation: Callable[[Any, Any], Any], values: list[Value]) -> Value:
    """One after the other, however many: a function in a function in a function would have its limit."""
    if len(values) == 1:
        return values[0]
    return lambda document: reduce(operation, [value(document) for value in values])


def _at(steps: tuple[str | int, ...]) -> Value:
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
