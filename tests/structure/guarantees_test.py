#!/usr/bin/env python3
"""Fails when a test that docs/guarantees.md or docs/operations.md names is none that a change has to pass.

Each procedure of docs/operations.md names one. It also compares the failpoints of the swarm (tests/cluster/swarm_failpoints.cc) with the page: each is
there, in brackets if no known seed finds it, and each seed that the page states is the table's.

    guarantees_test.py ROOT                    each is in the file that the page names
    guarantees_test.py ROOT BUILD              and tests/run.sh --ci runs it: it is in a test without
                                               the labels nightly and soak
    guarantees_test.py ROOT BUILD --self-test  where the simulator's tests are nightly, theirs are missed
"""

import json
import pathlib
import re
import subprocess
import sys

NAMED = re.compile(r"`(tests/[\w/]+\.cc): ([^`]+)`")
SCRIPT = re.compile(r"`(tests/[\w/]+\.(?:sh|py))`")
CASE = re.compile(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)(?:,\s*"((?:[^"\\]|\\.)*)")?')
LATER = {"nightly", "soak"}


def cases(path):
    """The cases of a source: name -> tags. A name may be cut into several literals."""
    text = path.read_text() if path.is_file() else ""
    return {"".join(re.findall(r'"((?:[^"\\]|\\.)*)"', name)): tags
            for name, tags in CASE.findall(text)}


def sources_run(build, later):
    """Sources of tests with none of the labels `later`: (source, "") and, for hidden cases, (source, tag)."""
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True,
                            capture_output=True, text=True).stdout
    labels = {test["name"]: {label for item in test["properties"] if item["name"] == "LABELS"
                             for label in item["value"]}
              for test in json.loads(listed)["tests"]}
    found = set()
    for line in (pathlib.Path(build) / "tests" / "sources.txt").read_text().splitlines():
        name, *tag, source = line.split(" ")
        if name in labels and not labels[name] & later:
            found.add((source, tag[0] if tag else ""))
    return found


def failpoints(root):
    """Problems of the failpoints on the page."""
    page = (root / "docs" / "guarantees.md").read_text()
    # "name", or "name and further failpoints": {failpoints}, seed. A name has a seed if one of its rows has.
    table = (root / "tests" / "cluster" / "swarm_failpoints.cc").read_text()
    seeds = {}
    for name, seed in re.findall(r'\{"([^"]+)",\s*(?:\{[^}]*\}|\w+),\s*(\d+)', table):
        seeds.setdefault(name.split()[0], set()).add(int(seed))
    if len(seeds) < 20:
        yield f"only {len(seeds)} failpoints are in the swarm's table; has it another form?"
    for name, found_by in seeds.items():
        if f"`{name}`" not in page:
            yield f"the failpoint {name} is not on the page"
        elif found_by == {0} and page.count(f"`{name}`") != page.count(f"[`{name}`]"):
            yield f"the failpoint {name} has no seed: it stands in brackets"
        elif found_by != {0} and f"[`{name}`]" in page:
            yield f"the failpoint {name} has a seed: it stands in no brackets"
    for name, seed in re.findall(r"`(\w+)`: (\d+)", page):
        if int(seed) not in seeds.get(name, ()):
            yield f"no seed {seed} of the swarm's table finds {name}"


def procedures(root):
    """Problems of the page's table of procedures: rows without a test, and scripts that are not there."""
    page = (root / "docs" / "operations.md").read_text()
    table = re.search(r"^\| procedure \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    rows = table.group(0).strip().splitlines()[2:] if table else []
    if len(rows) < 10:
        yield f"only {len(rows)} procedures are in docs/operations.md; has the page another form?"
    for row in rows:
        scripts = SCRIPT.findall(row)
        if not scripts and not NAMED.search(row):
            yield f"docs/operations.md: a procedure without a test: {row}"
        for script in scripts:
            listed = root / pathlib.Path(script).parent / "CMakeLists.txt"
            if not (root / script).is_file() or pathlib.Path(script).name not in listed.read_text():
                yield f"docs/operations.md: {script} is no test"


def problems(root, build, later):
    named = [test for page in ("guarantees.md", "operations.md")
             for test in NAMED.findall((root / "docs" / page).read_text())]
    known = {file: cases(root / file) for file, _ in named}
    run = sources_run(build, later) if build else None
    for file, name in named:
        if name not in known[file]:
            yield f"{file} has no test '{name}'"
        elif run is not None and not any((file, tag) in run for tag in
                                         re.findall(r"\[(\.[^]]*)\]", known[file][name]) or [""]):
            yield f"{file}: '{name}' shows a guarantee, but only tests/run.sh --nightly runs it"
    if len(named) < 20:
        yield f"only {len(named)} tests are named; has the page another form?"


def main():
    root = pathlib.Path(sys.argv[1])
    build = sys.argv[2] if len(sys.argv) > 2 else ""
    found = list(problems(root, build, LATER)) + list(failpoints(root)) + list(procedures(root))
    if "--self-test" in sys.argv:
        # Tests of the simulator show many of them.
        more = list(problems(root, build, LATER | {"cluster"}))
        found = [] if len(more) > len(found) else ["not missed: tests with the label cluster"]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
