"""Mutations by syntax tree: of each kind wherever it is possible, and a fixed choice among them.

The choice goes by the names, which hold a function's name and the change, so that an edit elsewhere neither adds nor
removes a mutant.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from typing import TYPE_CHECKING

from tests.mutants.mutant import SOURCE, Mutant, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PROTOCOL = (
    *("core.decide", "core.liveness", "core.view", "core.lineage", "stores.rules", "stores.stored_group"),
    *("runtime.coordinator", "runtime.hold", "runtime.committer", "runtime.pump"),
    *("runtime.transaction", "runtime.memory"),
)
"""Where the promise is kept."""
PROTOCOL_SHARE = 0.045
OTHER_SHARE = 0.014

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
SMALL = 100
"""A larger number is a size, and one more of it is no fault."""
EXTREMES = {"min": "max", "max": "min"}
LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)


def modules() -> list[str]:
    found = [f"{room}.{file.stem}" for room in ("core", "runtime") for file in sorted((SOURCE / room).glob("*.py"))]
    return [*(name for name in found if not name.endswith("__init__")), "stores.stored_group", "stores.rules"]


def chosen() -> list[Mutant]:
    return [
        mutant
        for module in modules()
        for mutant in possible(module, source_of(module))
        if mutant.rank < (PROTOCOL_SHARE if module in PROTOCOL else OTHER_SHARE)
    ]


def possible(module: str, source: str) -> list[Mutant]:
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = b"".join(lines)
    counts: Counter[str] = Counter()
    found = []
    for place, node, changed in _Mutations().of(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        what = f"{_short(ast.unparse(node))} -> {_short(changed)}"
        name = f"{module}.{place}: {what}" if place else f"{module}: {what}"
        counts[name] += 1
        if counts[name] > 1:
            name += f" ({counts[name]})"
        new = changed if changed == "pass" else f"({changed})"
        mutated = (text[:begin] + new.encode() + text[end:]).decode()
        found.append(Mutant(name, module, f"line {node.lineno}: {what}", mutated))
    return found


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:87]}..."


Place = tuple[str, ast.expr | ast.stmt, str]
"""The function, the node, and what stands there instead."""


class _Mutations(ast.NodeVisitor):
    """Not of what says something to people or to the type checker: texts, errors, assertions, annotations."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._found: list[Place] = []

    def of(self, tree: ast.AST) -> list[Place]:
        self.visit(tree)
        return self._found

    def _add(self, node: ast.expr | ast.stmt, changed: ast.AST | str) -> None:
        self._found.append((".".join(self._path), node, changed if isinstance(changed, str) else ast.unparse(changed)))

    # --- where not to look
    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node.name, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__init__":
            return  # without one of those assignments nothing works
        self._inside(node.name, [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body])

    visit_AsyncFunctionDef = visit_FunctionDef

    def _inside(self, name: str, nodes: Sequence[ast.AST]) -> None:
        self._path.append(name)
        for one in nodes:
            self.visit(one)
        self._path.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _skip(self, node: ast.AST) -> None:
        pass

    visit_Raise = visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = _skip

    # --- statements
    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if len(node.body) == 1 and isinstance(node.body[0], LEAVES) and not node.orelse:
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not ast.unparse(call.func).startswith("logger."):
            self._add(node, "pass")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add(node, "pass")
        if not any(isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets):
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Attribute | ast.Subscript):
            self._add(node, "pass")
        self.visit(node.value)

    # --- expressions
    def visit_Compare(self, node: ast.Compare) -> None:
        for number, sign in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[number] = SWAPPED[type(sign)]()
            self._add(node, changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, ast.BoolOp(other, node.values))
        for number in range(len(node.values)):
            rest = [value for place, value in enumerate(node.values) if place != number]
            if _is_about_none(node.values[number]):
                continue  # what it guards raises an error at once
            self._add(node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._add(node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SIGNS:
            self._add(node, ast.BinOp(node.left, SIGNS[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
            self._add(node, ast.Call(ast.Name(EXTREMES[node.func.id]), node.args, node.keywords))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int) and node.value < SMALL:
            self._add(node, str(node.value + 1))


def _is_about_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
