#!/usr/bin/env python3
"""Fails when a program or library that is installed has a failpoint or another test hook.

    installed_test.py ROOT FILE...            looks for their names in symbols, strings and debug information
    installed_test.py ROOT --self-test FILE   expects most failpoints in FILE, a test program that has all
"""
import os
import re
import sys

import tree

# Beside the names of failpoints: their class, options, the transport of the simulator.
HOOKS = ("failpoint", "--pause-", "sim_network", "simnetwork")


def failpoints(root):
    """The names in the modules' failpoints.h, each `Failpoint NAME;`."""
    names = set()
    for path in tree.files(root, suffixes=(".h",)):
        if os.path.basename(path) == "failpoints.h":
            names |= set(re.findall(r"^ *Failpoint (\w+);", tree.read(root, path), re.MULTILINE))
    return names


def begins(data, word):
    """Whether a word of `data` begins with `word`. Searches by bytes: a pattern takes minutes for a library."""
    at = data.find(word)
    while at > 0 and data[at - 1:at].isalpha():
        at = data.find(word, at + 1)
    return at >= 0


def found(root, path, words):
    """The words that the file has, other than as the end of a longer one, or in the name of the source tree."""
    with open(path, "rb") as f:
        data = f.read().replace(os.path.realpath(root).encode(), b"").lower()
    return sorted(w for w in words if begins(data, w.encode()))


def main():
    root, *files = sys.argv[1:]
    names = failpoints(root)
    if len(names) < 90:
        sys.exit(f"only {len(names)} failpoints are declared in the headers failpoints.h; have they another form?")
    if files[0] == "--self-test":
        if len(found(root, files[1], names)) < len(names) / 2 or "failpoint" not in found(root, files[1], HOOKS):
            sys.exit(f"few failpoints are found in {files[1]}, which has all")
        return 0
    problems = []
    for file in files:
        words = found(root, file, names | set(HOOKS))
        if words:
            problems.append(f"{os.path.basename(file)} is installed and has names of test hooks: {', '.join(words)}")
    return "\n".join(problems) or 0


if __name__ == "__main__":
    sys.exit(main())
