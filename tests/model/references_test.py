#!/usr/bin/env python3
"""Transitions of the model (*.pml, rules.h) name the functions that implement them, which exist, and those of a partition
use no variables of another one.

    references_test.py ROOT              checks all files
    references_test.py ROOT --self-test  checks that mistakes are found

A reference is `path/file.cc: Class::Function` in a comment: a source has that text before a parenthesis; a header has
`Function(`. Each paragraph of a .pml that defines a transition (a macro with an option `::`, or one that calls
DECIDE or DECIDE_AND) and each of rules.h that defines a rule has a reference in its comments, or `Environment` (not the product's
doing), or `Planned` (no code yet).

Variables of a partition have its parameter `p` as an index, or that of a loop over all partitions, `j`. So what happens to
one of several partitions also happens in the model of one (docs/model.md, Abstractions). A planted fault that couples two
partitions is in a paragraph that says so: `Couples partitions`.
"""
import os
import re
import sys

REFERENCE = re.compile(r"\b((?:\w+/)+\w+\.(?:cc|h)): ((?:\w+::)*\w+)")
TRANSITION = re.compile(r"^#define (\w+)(?:\([^)]*\))?(?:\s|\\)*(?:::|DECIDE(?:_AND)?\()", re.MULTILINE)
RULE = re.compile(r"^#define ((?:MAY|IS|ADD|ADMIT|DROP|MAKE)\w*)\(", re.MULTILINE)
MODEL = ("cluster.pml", "servers.pml", "coordinators.pml", "rules.h")
VARIABLE = re.compile(r"\b(?:AT|NOW|HERE|SEEN|COPY_OF)\(([^,()]+)|\b(?:lost|acknowledged)\[([^\]]+)\]")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def problems_of(name, text, kind, read):
    found = 0
    for paragraph in re.split(r"\n\s*\n", text):
        comments = " ".join(COMMENT.findall(paragraph))
        references = REFERENCE.findall(comments)
        found += len(references)
        for path, function in references:
            source = read(path)
            wanted = function if path.endswith(".cc") else function.rsplit("::", maxsplit=1)[-1]
            if source is None:
                yield f"{name}: {path} does not exist"
            elif not re.search(r"(?<![\w:])" + re.escape(wanted) + r"\(", source):
                yield f"{name}: {path} has no {function}()"
        # A macro that other ones are made with is none itself.
        defined = [d for d in kind.findall(paragraph) if d not in ("DECIDE", "DECIDE_AND", "TIME")]
        if defined and not references and not re.search(r"\b(Environment|Planned)\b", comments):
            yield f"{name}: {', '.join(defined)} names no function that implements it"
    if found == 0:
        yield f"{name}: no references"


def coupled(name, text):
    for paragraph in re.split(r"\n\s*\n", text):
        if "Couples partitions" in paragraph:
            continue
        for found in VARIABLE.finditer(paragraph):
            index = (found.group(1) or found.group(2)).strip()
            if index not in ("p", "j"):
                yield f"{name}: {found.group(0)}: a variable of partition {index}, not of the transition's partition p"


def reader(root):
    def read(path):
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None
    return read


def check(read):
    problems = []
    for file in MODEL:
        path = f"tests/model/{file}"
        problems += problems_of(path, read(path), RULE if file == "rules.h" else TRANSITION, read)
        if file in ("servers.pml", "coordinators.pml"):
            problems += coupled(path, read(path))
    return problems


def self_test(root):
    read = reader(root)
    assert not check(read)
    sources = {"a/b.cc": "void A::Go() {\n", "a/b.h": "  bool Is(int x);\n"}
    good = "/* a/b.cc: A::Go, a/b.h: A::Is */\n#define STEP(s) \\\n  :: d_step { x }\n"
    cases = {
        good: 0,
        good.replace("A::Go", "A::Went"): 1,
        good.replace("A::Go", "B::Go"): 1,
        good.replace("a/b.cc", "a/c.cc"): 1,
        good + "\n#define OTHER(s) :: d_step { y }\n": 1,
        good + "\n#define OTHER(c, s) DECIDE(c, s)\n": 1,
        good + "\n/* Environment. */\n#define OTHER(s) :: d_step { y }\n": 0,
        good.replace("a/b.cc: A::Go, a/b.h: A::Is", "nothing"): 2,
    }
    for text, count in cases.items():
        problems = list(problems_of("model", text, TRANSITION, sources.get))
        assert len(problems) == count, (text, problems)
    for text, count in {"HERE(p, s).done < acknowledged[p]": 0, "NOW(j).copy": 0, "HERE(1 - p, s).left": 1, "lost[0]": 1,
                        "/* Couples partitions. */ HERE(1 - p, s).left": 0}.items():
        assert len(list(coupled("model", text))) == count, text
    # The real model has transitions of each kind.
    transitions = [t for file in MODEL for t in TRANSITION.findall(read(f"tests/model/{file}"))]
    assert {"VIEW", "PUSH", "RECONFIGURE", "COMMIT", "KEY_ENDS", "CRASH", "MOVE"} <= set(transitions), transitions


def main():
    root = sys.argv[1]
    if "--self-test" in sys.argv[2:]:
        self_test(root)
        return 0
    problems = check(reader(root))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
