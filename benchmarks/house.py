"""How easy the code is to pick up, as far as it can be counted: sizes, names, words, protocols, duplicated decisions.

It reads the tree and measures nothing else, except the seconds of `make quick`, which have no bar.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from benchmarks.harness import Bar, Figure, Result, at_most, figure
from tests import wording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Node = TypeVar("Node", bound=ast.AST)

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenflow"
LINES_MOST = 500
METHODS_MOST = 30
FUNCTION_MOST = 60
KILOBYTE = 1024
PROTOCOLS = ("ports.py",)
READS = r"(?:partition|split|startswith|removeprefix|endswith|find|index)"
READS_REASONS = re.compile(rf"\breason\.{READS}\(|\bin \w*\.?reason\b")
READS_ERRORS = re.compile(rf"(?:\berror|str\(error\))\.{READS}\(")
"""A reason or an error of ours that is read as text. Text of drivers is read where it is translated: `TRANSLATE`."""
TRANSLATE = {"client.py", "driver.py", "connection.py", "errors.py", "pool.py"}


class Module(NamedTuple):
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def run() -> Result:
    modules = [Module(path, text := path.read_text(), ast.parse(text)) for path in sorted(SOURCE.rglob("*.py"))]
    listed = {
        f"files over {LINES_MOST} lines": (long_files(modules), 0),
        f"classes above {METHODS_MOST} methods": (large_classes(modules), 0),
        f"functions above {FUNCTION_MOST} lines": (long_functions(modules), 0),
        "prefix families": (prefix_families(), 0),
        "words and phrases to replace": ([str(one) for one in wording.find()], 0),
        "class names defined more than once": (repeated_names(modules), 5),
        "protocols in ports": (protocols(modules), 15),
        "isinstance probes of capabilities": (probes(modules), 20),
        "places that parse a reason or an error": (parsers(modules), 0),
    }
    bars = [at_most(name, len(found), most) for name, (found, most) in listed.items()]
    bars += [
        size_bar("ARCHITECTURE.md", 12),
        size_bar("README.md", 8),
        at_most("lines of Python in src", sum(module.lines for module in modules), 60_000),
    ]
    notes = [f"{name}: {one}" for name, (found, most) in listed.items() if len(found) > most for one in found[:20]]
    return Result([figure("files in src", [len(modules)]), *quick()], bars, notes)


def size_bar(name: str, kilobytes: int) -> Bar:
    return at_most(f"{name}, KB", (ROOT / name).stat().st_size / KILOBYTE, kilobytes)


def quick() -> Iterator[Figure]:
    """How long the inner loop takes, where its environment is there already."""
    if shutil.which("make") is None or not (ROOT / ".venv").exists():
        return
    began_s = perf_counter()
    done = subprocess.run(["make", "quick"], cwd=ROOT, capture_output=True, check=False)
    name = "make quick" if done.returncode == 0 else "make quick, which FAILED"
    yield figure(name, [perf_counter() - began_s], "s")


# --- what is counted
def long_files(modules: Sequence[Module]) -> list[str]:
    return [f"{module.name} ({module.lines})" for module in modules if module.lines > LINES_MOST]


def large_classes(modules: Sequence[Module]) -> list[str]:
    found = [(module, node, len(list(_functions(node.body)))) for module, node in _all(modules, ast.ClassDef)]
    return [f"{module.name}: {node.name} ({count})" for module, node, count in found if count > METHODS_MOST]


def long_functions(modules: Sequence[Module]) -> list[str]:
    found: list[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    found += _all(modules, ast.FunctionDef)
    found += _all(modules, ast.AsyncFunctionDef)
    return [f"{module.name}: {node.name} ({size})" for module, node in found if (size := _size(node)) > FUNCTION_MOST]


def prefix_families() -> list[str]:
    """Files of one folder that begin with the same word and an underscore: a package in disguise."""
    families: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*"):
        if path.suffix in (".py", ".lua") and "_" in path.stem and not path.stem.startswith("_"):
            families[path.parent, path.stem.partition("_")[0]].append(path.name)
    return [
        f"{folder.relative_to(ROOT)}: {', '.join(sorted(names))}"
        for (folder, word), names in sorted(families.items())
        if len(names) > 1 or (folder / f"{word}.py").exists()
    ]


def repeated_names(modules: Sequence[Module]) -> list[str]:
    counted = Counter(node.name for _, node in _all(modules, ast.ClassDef) if not node.name.startswith("_"))
    return [f"{name} ({count})" for name, count in counted.most_common() if count > 1]


def protocols(modules: Sequence[Module]) -> list[str]:
    return [
        node.name
        for module, node in _all(modules, ast.ClassDef)
        if module.path.name in PROTOCOLS and any("Protocol" in ast.unparse(base) for base in node.bases)
    ]


def probes(modules: Sequence[Module]) -> list[str]:
    """Questions whether an object has a capability that a protocol describes."""
    known = set(protocols(modules))
    return [
        f"{module.name}:{node.lineno}: {ast.unparse(node)}"
        for module, node in _all(modules, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2
        if known & {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
    ]


def parsers(modules: Sequence[Module]) -> list[str]:
    found = []
    for module in modules:
        for number, line in enumerate(module.text.splitlines(), 1):
            is_edge = module.path.name in TRANSLATE
            if READS_REASONS.search(line) or (READS_ERRORS.search(line) and not is_edge):
                found.append(f"{module.name}:{number}: {line.strip()}")
    return found


def _all(modules: Sequence[Module], kind: type[Node]) -> Iterator[tuple[Module, Node]]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, kind):
                yield module, node


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    return (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
