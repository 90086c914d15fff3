#!/usr/bin/env python3
"""guarantees_test.py ROOT: docs/guarantees.md names tests; fails when one is not at the given place."""

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

for line in missing:
    print(line)
if len(named) < 20:
    print(f"only {len(named)} tests are named; has the page another form?")
    sys.exit(1)
sys.exit(1 if missing else 0)
