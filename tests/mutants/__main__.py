"""python -m tests.mutants [--json] [--list] [--fresh] [--quick] [--only PART OF A NAME]"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tests.mutants.equivalents import EQUIVALENT
from tests.mutants.hunt import Tried, hunt, mutants

if TYPE_CHECKING:
    from tests.mutants.hunt import Score


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="The mutation score.")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--list", action="store_true", help="name the mutants and try none")
    parser.add_argument("--fresh", action="store_true", help="try all again, whatever was found out before")
    parser.add_argument("--quick", action="store_true", help="the module's own tests and a few worlds only")
    parser.add_argument("--only", metavar="PART", default="", help="those with this in their name")
    options = parser.parse_args()
    found = [mutant for mutant in mutants() if options.only in mutant.name]
    if not found:
        raise SystemExit(f"No mutant has {options.only!r} in its name; --list names them all.")
    if options.list:
        for mutant in found:
            print(f"{mutant.name}{' (equivalent)' if mutant.name in EQUIVALENT else ''}")
        return 0
    score = hunt(found, cached=not options.fresh, quick=options.quick, say=_say)
    print(json.dumps(as_json(score), indent=2) if options.json else as_text(score))
    return 1 if score.survivors or score.broken else 0


def _say(tried: Tried) -> None:
    verdict = tried.verdict
    mark = "survived" if tried.survived else "caught"
    line = f"{mark:<9}{verdict.cpu_s:5.1f} s  {tried.mutant.name}  [{verdict.caught_by or '-'}]"
    print(line, file=sys.stderr, flush=True)


def as_json(score: Score) -> dict[str, object]:
    return {
        "mutants": len(score.tried),
        "equivalent": {mutant.name: EQUIVALENT[mutant.name] for mutant in score.equivalent},
        "broken": list(score.broken),
        "survivors": {mutant.name: mutant.what for mutant in score.survivors},
        "score": score.share,
        "cpu_s": round(score.cpu_s, 1),
        "caught": {one.mutant.name: one.verdict.caught_by for one in score.tried if not one.survived},
    }


def as_text(score: Score) -> str:
    lines = [f"{mutant.name}\n    {mutant.what}" for mutant in score.survivors]
    if lines:
        lines.insert(0, "Survivors:")
    lines += [f"Fails without any mutant: {name}" for name in score.broken]
    lines.append(
        f"{len(score.tried) - len(score.survivors)} of {len(score.tried)} mutants were caught ({score.share:.1%}), in"
        f" {score.cpu_s:,.0f} s of processor time; {len(score.equivalent)} more change no behaviour."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
