#!/usr/bin/env python3
"""Measures how plain the language of the tree is, by kind of text; fails above a kind's limit.

    language_test.py ROOT               prints the rates and the worst files, and checks the limits
    language_test.py ROOT --list KIND   prints every place that counts in that kind of text
    language_test.py ROOT --self-test   checks the counting itself
    language_test.py --help

The rate is the number of words and phrases of the project's former private dialect per 1,000 words:
clauses with "what", "who" or "told" in place of a noun, fragments that begin with "Of", and names
that the field's terms replace (DIALECT, FRAGMENT). All of these words are good English now and then,
so the limit is not 0. There are no exceptions by file or line: rewrite the sentence, with a noun.

Kinds of text: documents (*.md); strings (literals of programs and libraries with a space in them:
help, errors, logs, descriptions of metrics; here-documents of scripts); comments of headers;
comments of sources; tests (names of test cases, and comments). Text in `backquotes` and blocks of
code do not count.
"""
import collections
import os
import re
import subprocess
import sys

import tree

LIMITS = {"documents": 1.5, "strings": 1.5, "headers": 1.5, "sources": 1.5, "tests": 1.5}
WORST = 4

# Whole words and phrases. A pattern that has a good use in this project is not listed.
DIALECT = re.compile(
    r"(?<![\w'-])(?:what|who|whom|whoever|tell|tells|telling|told|say|says|saying|said|"
    r"believe|believes|believed|borne|"
    # The table of terms: members, waiting, program or checkpoint, failpoint, catch-up, in flight.
    r"rosters?|parked|savers?|planted\s+bugs?|brought\s+up|under\s+way"
    r")(?![\w-])", re.IGNORECASE)
# Sentences that need the sentence or the comment before them.
FRAGMENT = re.compile(r"(?:^|(?<=[.;] ))(?:Of (?=[a-z`])|As above\b)", re.MULTILINE)
WORD = re.compile(r"[A-Za-z][\w'-]*")

TOKEN = re.compile(
    r'//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|R"(?P<mark>[^()\s\\]{0,16})\((?P<raw>.*?)\)(?P=mark)"|'
    r'"(?P<text>(?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\'', re.DOTALL)
CASE = re.compile(r'(?:TEST_CASE|SECTION)\w*\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)')
PYTHON = re.compile(r'"""(?P<doc>.*?)"""|(?P<string>"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')|'
                    r"#(?P<comment>[^\n]*)", re.DOTALL)
HERE = re.compile(r"<<-?[ ]*'?(?P<mark>[A-Z]+)'?[^\n]*\n(?P<text>.*?)\n[ \t]*(?P=mark)$",
                  re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"(?:^|(?<=\s))#(?!!)(?P<comment>[^\n]*)", re.MULTILINE)

Part = collections.namedtuple("Part", "line text")


def plain(text):
    """The text without code in it, with as many lines."""
    text = re.sub(r"```.*?```", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`", text)


def cpp(source):
    """Comments and strings of C, C++, CUDA and protobuf."""
    source = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", source, flags=re.MULTILINE)
    comments, strings = [], []
    for match in TOKEN.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        text = match.group("line") or match.group("block")
        if text is not None:
            comments.append(Part(line, re.sub(r"^[ \t*/<]*", "", text, flags=re.MULTILINE)))
            continue
        text = match.group("raw") or match.group("text")
        if text is not None and " " in text:
            strings.append(Part(line, re.sub(r"\\n", "\n", text)))
    return comments, strings


def script(source, python):
    pattern = PYTHON if python else SHELL
    return [Part(source.count("\n", 0, m.start()) + 1, m.group("comment" if m.groupdict().get("doc") is None
                                                             else "doc").strip())
            for m in pattern.finditer(source) if not python or m.group("string") is None]


def cases(source):
    return [Part(source.count("\n", 0, m.start()) + 1,
                 "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', m.group(1))))
            for m in CASE.finditer(source)]


def parts(path, source):
    """The kinds of text of a file, with the parts of each."""
    test = path.startswith("tests/")
    if path.endswith(".md"):
        return {"documents": [Part(1, plain(source))]}
    if path.endswith((".cc", ".h", ".h.in", ".c", ".cu", ".proto")):
        comments, strings = cpp(source)
        if test:
            return {"tests": comments + cases(source)}
        return {"sources" if path.endswith((".cc", ".c", ".cu")) else "headers": comments,
                "strings": strings}
    if path.endswith((".py", ".sh", ".cmake", "CMakeLists.txt")):
        found = {"tests" if test else "sources": script(HERE.sub("", source), path.endswith(".py"))}
        if path.endswith(".sh") and not test:
            found["strings"] = [Part(source.count("\n", 0, m.start("text")) + 1, m.group("text"))
                                for m in HERE.finditer(source)]
        return found
    return {}


def places(part):
    """Line and text of everything that counts."""
    text = plain(part.text)
    for pattern in (DIALECT, FRAGMENT):
        for match in pattern.finditer(text):
            yield part.line + text.count("\n", 0, match.start()), match.group().strip()


def files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=False)
    found = listed.stdout.split("\n") if listed.returncode == 0 else tree.files(root)
    return sorted(path for path in found if path and os.path.isfile(os.path.join(root, path)))


class Count:
    def __init__(self):
        self.words, self.places = 0, []

    def add(self, part):
        self.words += len(WORD.findall(plain(part.text)))
        self.places += places(part)

    def rate(self):
        return 1000 * len(self.places) / max(self.words, 1)


def measure(root):
    """By kind and path."""
    counts = {kind: collections.defaultdict(Count) for kind in LIMITS}
    for path in files(root):
        for kind, of_kind in parts(path, tree.read(root, path)).items():
            for part in of_kind:
                counts[kind][path].add(part)
    return counts


def report(counts):
    failed = False
    for kind, limit in LIMITS.items():
        words = sum(c.words for c in counts[kind].values())
        found = sum(len(c.places) for c in counts[kind].values())
        rate = 1000 * found / max(words, 1)
        failed |= rate > limit or words == 0
        print(f"{kind}: {rate:.2f} per 1,000 words, limit {limit} ({found} of {words})"
              f"{': TOO MUCH' if rate > limit else ''}")
        worst = sorted(counts[kind].items(), key=lambda item: -len(item[1].places))[:WORST]
        for path, count in worst:
            if count.places:
                print(f"    {path}: {len(count.places)} ({count.rate():.1f} per 1,000)")
    return failed


def self_test():
    def count(path, source):
        return {kind: sum(len(list(places(p))) for p in of_kind)
                for kind, of_kind in parts(path, source).items()}

    expected = [
        ("a/b.md", "What it says:\n```\nwho told\n```\n`what` is code.", {"documents": 2}),
        ("a/b.h", "// Who waits.\n//\n// Of a table. Of it: one; of two.\nint what;  // whatever",
         {"headers": 3, "strings": 0}),
        ("a/b.cc", '#include "what who"\nF("says so", "told", R"(a\nsaver)", \'"\');  // parked',
         {"sources": 1, "strings": 1}),
        ("a/b.cc", 'F("https://x who is");  /* As above,\n * under way. */ int told_ = 0;',
         {"sources": 2, "strings": 1}),
        ("tests/a.cc", 'TEST_CASE("who " "waits", "[x]") { F("what is it"); }  // told',
         {"tests": 2}),
        ("a/CMakeLists.txt", "# what\nset(x what)  # who", {"sources": 2}),
        ("tests/a.py", '"""What it is."""\nx = "# who"  # told', {"tests": 2}),
        ("a/b.sh", "#!/bin/what\necho $# who  # told", {"sources": 1, "strings": 0}),
        ("a/b.sh", "cat <<'EOF'\nSay # what\nEOF\n# who", {"sources": 1, "strings": 2})]
    return [f"{path}: {count(path, source)} instead of {wanted}: {source!r}"
            for path, source, wanted in expected if count(path, source) != wanted]


def main():
    if "--help" in sys.argv or len(sys.argv) < 2:
        print(__doc__)
        return 0 if "--help" in sys.argv else 2
    if sys.argv[2:] == ["--self-test"]:
        problems = self_test()
        print("\n".join(problems))
        return 1 if problems else 0
    counts = measure(sys.argv[1])
    if sys.argv[2:3] == ["--list"]:
        for path, count in sorted(counts[sys.argv[3]].items()):
            for line, text in count.places:
                print(f"{path}:{line}: {text}")
        return 0
    return 1 if report(counts) else 0


if __name__ == "__main__":
    sys.exit(main())
