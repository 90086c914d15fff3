#!/usr/bin/env python3
"""Rules for the text of the tree; one rule a ctest test:

    text_test.py ROOT markers   no marker of unfinished work
    text_test.py ROOT readmes   a README of 10 to 30 lines in every top-level folder
    text_test.py ROOT example   documents show the files they name as they are compiled
    text_test.py ROOT links     files that the documents name exist, and have the headings that links
                                name
    text_test.py ROOT decisions  records of at most 15 lines of text, at most 30 of them, each in the index
    text_test.py ROOT headers   every header states its purpose and its thread safety, has an
                                include guard, and comes first in the source of its name
"""
import os
import re
import sys

import tree

# Spelled apart, so that this file does not find itself.
MARKER = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + "X|HA" + r"CK)\b")
TOP_DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def markers(root):
    paths = tree.files(root) + ["README.md", "ARCHITECTURE.md", "CMakeLists.txt"]
    for path in paths:
        for number, line in enumerate(tree.read(root, path).splitlines(), 1):
            if MARKER.search(line):
                yield f"{path}:{number}: {line.strip()}"


def readmes(root):
    for folder in sorted(os.listdir(root)):
        inside = os.path.join(root, folder)
        if folder.startswith((".", "build")) or not os.path.isdir(inside):
            continue
        readme = os.path.join(folder, "README.md")
        if not os.path.exists(os.path.join(root, readme)):
            yield f"{readme}: missing"
            continue
        lines = tree.read(root, readme).count("\n")
        if not 10 <= lines <= 30:
            yield f"{readme}: {lines} lines; 10 to 30 are wanted"


def example(root):
    for document, path, language in (
            ("README.md", "client/example/quick_example.cc", "cpp"),
            ("docs/client-guide.md", "client/example/quick_example.c", "c"),
            ("README.md", "worker/python/examples/ten_lines.py", "python"),
            ("docs/python.md", "worker/python/examples/ten_lines.py", "python"),
            ("ARCHITECTURE.md", "shard/optimizer/adagrad.cc", "cpp")):
        source = tree.read(root, path).strip()
        blocks = re.findall(r"```%s\n(.*?)```" % re.escape(language), tree.read(root, document),
                            re.DOTALL)
        if source not in (b.strip() for b in blocks):
            yield f"{document}: no code block is {path}, word for word"


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    found, seen = set(), {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        found.add(anchor if count == 0 else f"{anchor}-{count}")
    return found


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def documents(root):
    found = list(TOP_DOCUMENTS)
    for folder, _, names in sorted(os.walk(os.path.join(root, "docs"))):
        found += [os.path.relpath(os.path.join(folder, name), root)
                  for name in sorted(names) if name.endswith(".md")]
    return found + list(tree.files(root, suffixes=("README.md",)))


def links(root):
    for document in sorted(set(documents(root))):
        text = without_code(tree.read(root, document))
        folder = os.path.dirname(document)
        for name in sorted(set(re.findall(r"`((?:%s)/[\w./-]*\w\.\w+)`" % "|".join(tree.FOLDERS), text))):
            if not any(os.path.exists(os.path.join(root, at, name)) for at in (folder, "")):
                yield f"{document}: {name} does not exist"
        for name, anchor in sorted(set(re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text))):
            target = os.path.normpath(os.path.join(folder, name)) if name else document
            if not os.path.exists(os.path.join(root, target)):
                yield f"{document}: {name} does not exist"
            elif anchor and target.endswith(".md") \
                    and anchor not in anchors(without_code(tree.read(root, target))):
                yield f"{document}: {name} has no heading for #{anchor}"


def decisions(root):
    folder = os.path.join("docs", "decisions")
    records = sorted(name for name in os.listdir(os.path.join(root, folder)) if name != "README.md")
    index = re.findall(r"^\| \[\d{4}\]\(([\w-]+\.md)\) \|", tree.read(root, os.path.join(folder, "README.md")),
                       re.MULTILINE)
    if index != records:
        yield f"{folder}/README.md: its table differs from the records: {sorted(set(index) ^ set(records))}"
    if not 20 <= len(records) <= 30:
        yield f"{folder}: {len(records)} records; 20 to 30 are allowed: join those of one subject"
    for name in records:
        text = tree.read(root, os.path.join(folder, name))
        lines = sum(1 for line in text.splitlines() if line)
        if lines > 15:
            yield f"{folder}/{name}: {lines} lines of text; at most 15 are allowed"
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        if parts != ["Context", "Decision", "Consequences"]:
            yield f"{folder}/{name}: its parts are {parts}; they must be Context, Decision, Consequences"


def headers(root):
    for path in tree.files(root, tree.MODULES, (".h",)):
        opening = tree.read(root, path).split("#ifndef")[0]
        if not opening.startswith("//"):
            yield f"{path}: does not open with a sentence of purpose"
        elif "**Thread safety**" not in opening and "pure" not in opening.lower() \
                and not path.startswith("proto/wire/record.h"):
            yield f"{path}: its opening comment does not state **Thread safety**"
        yield from guard(root, path)


def guard(root, path):
    """That a header may be included twice, and compiles by itself when its source does."""
    installed = path.removeprefix("client/include/verbena/")  # users see no more of it
    macro = "VERBENA_" + re.sub(r"[/.]", "_", installed).upper() + "_"
    directives = re.findall(r"^#.*", tree.read(root, path), re.MULTILINE)
    if directives[:2] != [f"#ifndef {macro}", f"#define {macro}"] \
            or not directives[-1].startswith("#endif"):
        yield f"{path}: its include guard is not {macro}"
    source = path[:-len(".h")] + ".cc"
    if os.path.exists(os.path.join(root, source)):
        first = re.search(r"^#\s*include.*", tree.read(root, source), re.MULTILINE)
        if first is None or first.group() != f'#include "{path}"':
            yield f"{source}: its first include is not {path}"


def main():
    rule = {"markers": markers, "readmes": readmes, "example": example, "links": links,
            "decisions": decisions, "headers": headers}[sys.argv[2]]
    problems = list(rule(sys.argv[1]))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
