#!/usr/bin/env python3
"""guarantees_test.py ROOT: docs/guarantees.md names tests; fails when one is not where it says.

It also names the failpoints of the swarm (tests/cluster/swarm_planted.cc): each is there, in
brackets if no known seed finds it, and each seed that it states is the table's.
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
page = (root / "docs" / "guarantees.md").read_text()

named = re.findall(r"`(tests/[\w/]+\.cc): ([^`]+)`", page)
missing = []
for file, name in named:
    path = root / file
    text = path.read_text() if path.is_file() else ""
    # A name may be cut into several literals.
    cases = [
        "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', case))
        for case in re.findall(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text)
    ]
    if name not in cases:
        missing.append(f"{file} has no test '{name}'")

# "name", or "name and what is beside it": {failpoints}, seed. A name has a seed if one of its rows has.
table = (root / "tests" / "cluster" / "swarm_planted.cc").read_text()
seeds = {}
for name, seed in re.findall(r'\{"([^"]+)",\s*(?:\{[^}]*\}|\w+),\s*(\d+)', table):
    seeds.setdefault(name.split()[0], set()).add(int(seed))
if len(seeds) < 20:
    missing.append(f"only {len(seeds)} failpoints are in the swarm's table; has it another form?")
for name, found_by in seeds.items():
    if f"`{name}`" not in page:
        missing.append(f"the failpoint {name} is not on the page")
    elif found_by == {0} and page.count(f"`{name}`") != page.count(f"[`{name}`]"):
        missing.append(f"the failpoint {name} has no seed: it stands in brackets")
    elif found_by != {0} and f"[`{name}`]" in page:
        missing.append(f"the failpoint {name} has a seed: it stands in no brackets")
for name, seed in re.findall(r"`(\w+)`: (\d+)", page):
    if int(seed) not in seeds.get(name, ()):
        missing.append(f"no seed {seed} of the swarm's table finds {name}")

for line in missing:
    print(line)
if len(named) < 20:
    print(f"only {len(named)} tests are named; has the page another form?")
    sys.exit(1)
sys.exit(1 if missing else 0)
