"""Runs the official TOSA conformance suite against tosaic and writes docs/measured/conformance.md.

    python tests/full/run_conformance.py [--profile int|fp] [--jobs J] [--shard I/N] [--results DIR]
                                         [--operators OP ...] [--limit N --seed S]

Tests are generated, run by the suite's own runner and deleted one by one. Results are stored in a folder of
the profile and are valid until our sources change, so an interrupted run continues; directories of failing
tests are stored there too. Shards that share a folder may run at the same time. The profile's section of the
page is written once every test has a result. Exit code 1 if the suite rejects a test.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import zlib
from collections.abc import Iterable
from datetime import date
from pathlib import Path

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from markdown_page import write_markdown
from tosa_conformance import suite
from tosa_conformance.suite import ROOT, Batch, Profile, Result

RESULTS = {
    "fp": ROOT / "build" / "full" / "conformance",
    "int": ROOT / "build" / "full" / "conformance_int",
}
PAGE = ROOT / "docs" / "measured" / "conformance.md"


class Record:
    """The stored results of a profile: a folder with a file per operator and directories of failing tests."""

    def __init__(self, folder: Path, profile: Profile) -> None:
        self.folder = folder
        self.profile = profile
        self.failed = folder / "failed"
        self.failed.mkdir(parents=True, exist_ok=True)
        mark = f"{suite.suite_version()}, {suite.fingerprint()}\n"
        with (folder / "fingerprint.txt").open("a+") as stamp:
            fcntl.flock(stamp, fcntl.LOCK_EX)  # several shards may start at the same time
            stamp.seek(0)
            if stamp.read() != mark:
                for file in folder.glob("*.jsonl"):
                    file.unlink()
                stamp.truncate(0)
                stamp.write(mark)

    def plan(self, jobs: int) -> list[Batch]:
        """Returns all batches with the names of their tests, listed once per version of the suite."""
        file = self.folder / "plan.json"
        if file.exists():
            known = json.loads(file.read_text())
            if known["suite"] == suite.suite_version():
                return [
                    Batch(b["operator"], tuple(b["arguments"]), tuple(b["tests"])) for b in known["batches"]
                ]
        batches = suite.plan(self.profile, jobs=jobs)
        text = json.dumps({"suite": suite.suite_version(), "batches": [vars(b) for b in batches]})
        part = self.folder / f"plan.{os.getpid()}.json"
        part.write_text(text)
        part.replace(file)
        return batches

    def add(self, result: Result) -> None:
        """Appends a result; a run that is killed loses at most the test that is running."""
        with (self.folder / f"{result.operator}.jsonl").open("ab", buffering=0) as file:  # one write per line
            file.write((json.dumps(vars(result)) + "\n").encode())

    def known(self) -> list[Result]:
        """Returns all stored results. If a test has several results, the last one counts."""
        lines = [
            line for file in sorted(self.folder.glob("*.jsonl")) for line in file.read_text().splitlines()
        ]
        results = [Result(**json.loads(line)) for line in lines]
        return list({(result.operator, result.test): result for result in results}.values())


def section(profile: Profile, batches: list[Batch], results: Iterable[Result]) -> str:
    """Returns the profile's part of docs/measured/conformance.md."""
    by_operator: dict[str, list[Result]] = {}
    for result in results:
        by_operator.setdefault(result.operator, []).append(result)
    planned: dict[str, set[str]] = {}
    for batch in batches:
        planned.setdefault(batch.operator, set()).update(batch.tests)
    rows, failures = [], []
    sums = [0, 0, 0, 0, 0]
    for operator, names in sorted(planned.items()):
        done = [result for result in by_operator.get(operator, []) if result.test in names]
        cells = [len(names)]
        for negative in (False, True):
            kind = [result for result in done if result.negative == negative]
            cells += [sum(result.ok for result in kind), len(kind)]
        sums = [a + b for a, b in zip(sums, cells, strict=True)]
        rows.append(_row(operator, cells))
        failures += [result for result in done if not result.ok]
    text = _SECTION.format(
        date=date.today().isoformat(),
        suite=suite.suite_version(),
        profile=profile.name,
        fingerprint=suite.fingerprint(),
        extensions=", ".join(profile.extensions),
        scope=_SCOPE[profile.name],
        state="" if sums[2] + sums[4] == sums[0] else _INCOMPLETE,
    )
    text += "\n".join([*rows, _row("all", sums)]) + "\n\n### Not accepted\n\n"
    if not failures:
        return text + "None.\n"
    for result in sorted(failures, key=lambda result: (result.operator, result.test)):
        reason = " ".join(result.message.split())[:300].replace("|", "\\|")
        text += f"- `{result.test}`: {result.outcome}: {reason}\n"
    return text


def _row(name: str, cells: list[int]) -> str:
    planned, positive, positives, negative, negatives = cells
    return f"| {name} | {planned} | {positive} of {positives} | {negative} of {negatives} |"


def with_section(page: str, profile: Profile, text: str) -> str:
    """Replaces or adds the profile's section of the page. Sections are in the order of the profiles."""
    parts = page.split(_TITLE)[1:]
    sections = {part.split("\n", 1)[0]: _TITLE + part.strip("\n") + "\n" for part in parts}
    sections[profile.name] = text
    return "\n".join([_HEAD, *(sections[name] for name in suite.PROFILES if name in sections)])


_TITLE = "## Profile "

_HEAD = """# The TOSA conformance suite

<!-- generated by tests/full/run_conformance.py -->

The system under test is the reader, the checker with the target that each test requires, and the executor.
The suite's own runner runs the reference model in double precision, and the suite's own verifier decides. A
positive test passes if every output meets the suite's criteria, which for integers is equality. A negative
test passes if tosaic rejects it by the rule that `tests/tosa_conformance/tags.py` has for its ERRORIF tag.
All tensors go through files, also tensors of int48. The suite has no tests of CUSTOM and of the operators on
variables.
"""

_SECTION = """## Profile {profile}

{date}; {suite}; profile tosa-pro-{profile};
extensions {extensions}; sources {fingerprint}.

{scope}{state}
| operator | tests | positive accepted | negative rejected |
|---|---|---|---|
"""

_INCOMPLETE = """
This run is not complete: each row says how many tests have results.
"""

_SCOPE = {
    "fp": """The tests of WHILE_LOOP are checked against a target that also has profile INT: their loops end
on a GREATER of int32, which profile FP lacks.
""",
    "int": """\
Results are equal bit for bit. The only exception is RESCALE with inexact rounding, for which the suite has
bounds. The scalar reference and the kernels of each instruction set agree in all tests. For int16, int4 and
doubleround alone the suite lists 3,311 tests, two of them twice.
""",
}


def main() -> int:
    """Runs the selected tests that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=suite.PROFILES, default="fp")
    parser.add_argument("--operators", nargs="+", help="names of the suite, such as conv2d; default: all")
    parser.add_argument("--tests", nargs="+", help="only tests whose name contains one of these texts")
    parser.add_argument("--limit", type=int, help="the most tests of each operator")
    parser.add_argument("--seed", type=int, default=0, help="which tests, if there is a limit")
    parser.add_argument("--shard", type=shard, default=(1, 1), help="I/N: the I-th of N parts of the tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, help="default: a folder of the profile in build/full")
    parser.add_argument("--again", action="store_true", help="also run what failed before")
    parser.add_argument("--page", type=Path, help="write the section into this page, whatever was run")
    options = parser.parse_args()

    profile = suite.PROFILES[options.profile]
    record = Record(options.results or RESULTS[profile.name], profile)
    everything = record.plan(options.jobs)
    batches = everything
    if options.operators:
        unknown = set(options.operators) - {batch.operator for batch in batches}
        if unknown:
            parser.error(f"the suite has no operator {', '.join(sorted(unknown))}")
        batches = suite.select(batches, lambda operator, name: operator in options.operators)
    if options.tests:
        batches = suite.select(batches, lambda operator, name: any(text in name for text in options.tests))
    if options.limit is not None:
        batches = suite.sample(batches, options.seed, options.limit)
    part, parts = options.shard
    batches = suite.select(batches, lambda operator, name: zlib.crc32(name.encode()) % parts == part - 1)
    done = {(r.operator, r.test) for r in record.known() if r.ok or not options.again}
    missing = suite.select(batches, lambda operator, name: (operator, name) not in done)
    asked = names_of(batches)
    total = len(names_of(missing))
    print(f"{total} tests to run, {len(asked) - total} known", flush=True)
    for count, result in enumerate(suite.run(missing, profile, options.jobs, record.failed), 1):
        record.add(result)
        if not result.ok:
            print(f"{result.test}: {result.outcome}: {result.message}", flush=True)
        if count % 100 == 0:
            print(f"{count} of {total}", flush=True)

    known = record.known()
    results = [result for result in known if (result.operator, result.test) in asked]
    failures = sum(not result.ok for result in results)
    print(f"{len(results)} results, {failures} not accepted")
    complete = names_of(everything) <= {(result.operator, result.test) for result in known}
    if options.page or complete:
        file = options.page or PAGE
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        write_markdown(file, with_section(before, profile, section(profile, everything, known)))
    return 1 if failures else 0


def shard(text: str) -> tuple[int, int]:
    """Reads ``2/3`` as (2, 3)."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def names_of(batches: Iterable[Batch]) -> set[tuple[str, str]]:
    """Returns operator and name of each test."""
    return {(batch.operator, name) for batch in batches for name in batch.tests}


if __name__ == "__main__":
    sys.exit(main())
