#!/usr/bin/env python3
"""Names of functions, classes, constants and files that texts mention exist in the code.

    names_test.py ROOT              checks the tree
    names_test.py ROOT --self-test  finds planted names that do not exist

In documents: `Name()`, `Class::Name()`, `ClassName`, `kName` and `file.h` in backquotes. In comments of C++ files the same
without backquotes. A name exists if it stands anywhere in code, outside of comments.
"""
import os
import re
import sys

import text_test
import tree

SOURCES = (".h", ".cc", ".cu", ".c", ".h.in")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FUNCTION = re.compile(r"\b(?:[A-Za-z_]\w*(?:::|\.|->))*([A-Z]\w*[a-z]\w*)\(\)")
CONSTANT = re.compile(r"\b(k[A-Z]\w*)\b(?!\()")
FILE = re.compile(r"(?<![\w./*<-])((?:[\w-]+/)*[\w-]+\.(?:h|cc|cu|proto|py|sh))\b(?![(*])")
CLASS = re.compile(r"\b([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+)\b(?!\()")
# Names of other projects and of people, and placeholders, that texts mention.
FOREIGN = {
    "absl/status/status.h", "cublas_api.h", "cublas_v2.h", "cuda.h", "chttp2_server.cc", "verbena-gpu/run.sh",
    "cases/NAME.sh", "proto/wire/NAME.cc", "AdaComp", "AdaGrad", "E4M3", "E5M2", "EmbeddingBag", "LnkCap", "LnkSta",
    "McNeil", "NameOptimizer", "PropagateResourceLimitsExcept", "RlxdOrd", "SpaceSaving", "SplitMix64", "SrcValid",
    "TensorFlow", "TimeoutStopSec"}


class Names:
    def __init__(self, root):
        paths = tree.files(root, suffixes=SOURCES + (".proto", ".py", ".sh", ".cmake", ".toml", ".txt"))
        self.files, self.words = set(), set()
        for path in paths + ["CMakeLists.txt"]:
            parts = path.split("/")
            self.files.update("/".join(parts[n:]) for n in range(len(parts)))
            if path.endswith("names_test.py"):
                continue  # its self-test has names that must not exist
            text = tree.read(root, path)
            self.words.update(re.findall(r"\w+", COMMENT.sub(" ", text) if path.endswith(SOURCES) else text))

    def missing(self, text):
        for name in FUNCTION.findall(text) + CONSTANT.findall(text) + CLASS.findall(text):
            singular = name[:-1] if name.endswith("s") else name  # BagUses names BagUse
            if not {name, singular, singular.removesuffix("e")} & (self.words | FOREIGN):
                yield name
        for name in FILE.findall(text):
            if name not in self.files and name not in FOREIGN and not name.startswith("verbena/"):
                yield name


def problems(root, names, extra=()):
    for path in sorted(set(text_test.documents(root))) + [p for p, _ in extra if p.endswith(".md")]:
        text = dict(extra).get(path) or tree.read(root, path)
        for number, line in enumerate(text.splitlines(), 1):
            for span in CODE_SPAN.findall(line):
                for name in names.missing(span):
                    yield f"{path}:{number}: `{name}` does not exist"
    for path in tree.files(root, suffixes=SOURCES) + [p for p, _ in extra if not p.endswith(".md")]:
        text = dict(extra).get(path) or tree.read(root, path)
        for comment in COMMENT.finditer(text):
            for name in names.missing(comment.group()):
                line = text.count("\n", 0, comment.start()) + 1
                yield f"{path}:{line}: {name} does not exist, and a comment names it"


def self_test(root, names):
    planted = [("planted.md", "See `NoSuchThing::Absent()`, `kNowhere` and `shard/absent.h`.\n"),
               ("planted.h", "// NeverWritten() does it, see absent_file.h.\nint f();\n")]
    found = [p for p in problems(root, names, planted) if p.startswith("planted")]
    return [] if len(found) == 6 else [f"of 6 planted names {len(found)} were found: {found}"]


def main():
    root = sys.argv[1]
    names = Names(root)
    found = self_test(root, names) if "--self-test" in sys.argv[2:] else list(problems(root, names))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
