#!/usr/bin/env python3
"""The walk of a push in ARCHITECTURE.md: each function is in the file that is named with it.

    walk_test.py ROOT              checks the numbered list under "## A push"
    walk_test.py ROOT --self-test  checks that mistakes are found

A line of the list begins with "N. `Class::Function()` (`path`)". At most MOST functions lead from the
call to the kernel.
"""
import os
import re
import sys

MOST = 25
LINE = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
NAMED = re.compile(r"`((?:\w+::)*\w+)\(\)` \(`([\w/.]+)`\)")


def walk(text):
    """The section's list: (number, rest of the line)."""
    begin = text.find("\n## A push\n")
    end = text.find("\n## ", begin + 1)
    return [(int(n), rest) for n, rest in LINE.findall(text[begin:end])] if begin >= 0 else []


def problems_of(text, read):
    steps = walk(text)
    if not steps or not steps[0][1].startswith("`Client::Push()`"):
        yield 'ARCHITECTURE.md: no numbered list under "## A push" that begins with `Client::Push()`'
    if len(steps) > MOST:
        yield f"ARCHITECTURE.md: the walk of a push has {len(steps)} functions; allowed: {MOST}"
    for place, (number, rest) in enumerate(steps, 1):
        if number != place:
            yield f"ARCHITECTURE.md: line {number} of the walk of a push is its {place}th"
        named = NAMED.match(rest)
        if named is None:
            yield f"ARCHITECTURE.md: line {number} of the walk does not begin with `Function()` (`file`)"
            continue
        name, path = named.groups()
        source = read(path)
        # A definition at the border: its type, its name, its parameters, a brace.
        defined = rf"^(?![ \t#/}}])[^\n;=]*?(?<![\w:]){name}\((?=[^;]*?\)[^;]*?\{{)"
        if source is None:
            yield f"ARCHITECTURE.md: line {number} of the walk names {path}, which is not there"
        elif not re.search(defined, source, re.MULTILINE):
            yield f"ARCHITECTURE.md: line {number} of the walk: {path} does not define {name}()"


def self_test():
    files = {"a.cc": "void Client::Push(int a) {\n}\n", "b.cc": "int Engine::Push(int a);\n"}
    text = "\n## A push\n\n1. `Client::Push()` (`a.cc`) begins.\n{}\n## A pull\n"
    assert not list(problems_of(text.format(""), files.get))
    for wrong in ("2. `Engine::Push()` (`b.cc`)", "2. `Engine::Push()` (`c.cc`)", "2. Engine::Push",
                  "3. `Client::Push()` (`a.cc`)"):
        assert len(list(problems_of(text.format(wrong), files.get))) == 1, wrong
    many = "\n".join(f"{n}. `Client::Push()` (`a.cc`)" for n in range(2, MOST + 2))
    assert len(list(problems_of(text.format(many), files.get))) == 1
    assert list(problems_of("", files.get))


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = sys.argv[1]

    def read(path):
        full = os.path.join(root, path)
        return open(full).read() if os.path.isfile(full) else None

    problems = list(problems_of(open(os.path.join(root, "ARCHITECTURE.md")).read(), read))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
