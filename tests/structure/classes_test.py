#!/usr/bin/env python3
"""Prints the classes with the most methods, and fails where one has more than it may.

    classes_test.py ROOT              counts methods that are defined in sources, without tests and bench
    classes_test.py ROOT --self-test  checks the counting itself

Past LIMIT methods a class has more than one job.
"""
import collections
import re
import subprocess
import sys

LIMIT = 40

# A definition at the border: a type, Class:: (nested ones, too), a name, parameters, a brace.
DEFINITION = re.compile(r"^(?![ \t#/}])[^\n;={]*?(?<![\w:])((?:[A-Z]\w+::)+)(~?\w+|operator[^\s(]+)"
                        r"\((?=[^;]*?\)[^;]*?\{)", re.MULTILINE)


def methods(texts):
    """Class -> names of its methods. Overloads count once."""
    found = collections.defaultdict(set)
    for text in texts:
        for scope, name in DEFINITION.findall(text):
            found[scope[:-2]].add(name)
    return found


def too_large(found):
    for name, of_class in sorted(found.items()):
        if len(of_class) > LIMIT:
            yield f"{name} has {len(of_class)} methods; allowed: {LIMIT}. Split it by responsibility"


def self_test():
    text = "".join(f"void Large::M{i}(int a) {{\n}}\n" for i in range(LIMIT + 1))
    text += "bool Small::Call() const { return Large::M1(2); }\n"
    found = methods([text])
    assert len(found["Large"]) == LIMIT + 1 and found["Small"] == {"Call"}, found
    assert len(list(too_large(found))) == 1


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = sys.argv[1]
    files = subprocess.run(["git", "ls-files", "*.cc"], cwd=root, check=True, capture_output=True,
                           text=True).stdout.split()
    texts = [open(f"{root}/{file}").read() for file in files
             if not file.startswith(("tests/", "bench/"))]
    found = methods(texts)
    for name, of_class in sorted(found.items(), key=lambda item: -len(item[1]))[:10]:
        print(f"{len(of_class):4} methods (at most {LIMIT}): {name}")
    problems = list(too_large(found))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
