"""python -m operators [--examples N] [--seed S] NAME ...      tries overloads
python -m operators --case "Case('add.Tensor', (T((2,), 'f32'), T((1,), 'f16')))"      repeats one call
python -m operators --list      all names
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

import torch

from operators import values
from operators.checking import check
from operators.names import overloads
from operators.running import quiet, try_overload
from operators.table import ROWS


def repeat(text: str) -> int:
    """Runs a case that is given as its printed expression."""
    names = {"T": values.T, "Case": values.Case, "torch": torch, "device": torch.device}
    case = eval(text, names | {"inf": float("inf"), "nan": float("nan")})
    (outcome,) = check([case], ROWS[case.name])
    for name, value in asdict(outcome).items():
        if name != "case" and value not in ("", False):
            print(f"{name}: {value}")
    return 1 if outcome.failure else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="operators", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    quiet()
    if options.list:
        print("\n".join(f"{name:50} {section}" for name, section in overloads().items()))
        return 0
    if options.case:
        return repeat(options.case)
    failed = 0
    for name in options.names:
        tried = try_overload(name, examples=options.examples, seed=options.seed)
        failed += bool(tried.failures)
        print(
            f"{name}: {tried.examples} examples, {tried.refused_by_torch} refused by torch,"
            f" {tried.exported} exported, {tried.lowered} lowered, {tried.seconds:.1f} s"
        )
        for reason, times in tried.refused.items():
            print(f"  refused {times} times: {reason}")
        for failure in tried.failures:
            print(f"  FAILED {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
