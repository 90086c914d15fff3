#!/usr/bin/env python3
"""Fails on a public declaration that has no comment.

    documented_test.py ROOT              checks the public headers
    documented_test.py ROOT --self-test  takes comments away, one by one, and expects each missed

A declaration is documented by a comment that ends on the line above it; a field, an enumerator or a
macro also by one behind it on its own lines. One comment covers one declaration. Private parts of a
class need none.
"""
import re
import sys

import tree

# The libraries' public headers, which are installed as they lie here.
PUBLIC = "client/include/verbena"


def headers(root):
    return tree.files(root, (PUBLIC,), (".h", ".h.in"))


SCOPE = re.compile(r"^(?:typedef\s+)?(?:template\s*<[^>]*>\s*)?"
                   r"(?P<kind>namespace|extern|class|struct|union|enum)\b")
# Behind code, which may hold strings.
COMMENT_BEHIND = re.compile(r'(?:[^"/]|"[^"]*"|/(?!/))*//')


class Declaration:
    def __init__(self, first, last, text, function):
        self.first, self.last, self.text, self.function = first, last, text, function


def without_comments(text):
    """The same text with comments, strings and preprocessor lines blank, line by line."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', lambda m: '"' + " " * (len(m.group()) - 2) + '"', text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.MULTILINE)


class Parser:
    """Finds declarations at the level of namespaces, classes and enums."""

    def __init__(self, code):
        self.code, self.at, self.found = code, 0, []

    def line(self, at):
        return self.code.count("\n", 0, at) + 1

    def skip_braces(self):
        depth = 0
        while self.at < len(self.code):
            depth += {"{": 1, "}": -1}.get(self.code[self.at], 0)
            self.at += 1
            if depth == 0:
                return

    def scope(self, kind, hidden):
        """Up to the brace that closes this scope."""
        start, hides = None, hidden
        while self.at < len(self.code):
            c = self.code[self.at]
            if start is None and not c.isspace() and c not in "};":
                start = self.at
            statement = "" if start is None else self.code[start:self.at].strip()
            if c == "}":
                if kind == "enum" and statement:
                    self.add(start, self.at, hides)
                self.at += 1
                return
            if c == ":" and kind == "class" and statement in ("public", "private", "protected"):
                hides = hidden or statement != "public"
                start = None
            elif c in ("," if kind == "enum" else ";"):
                if statement:
                    self.add(start, self.at, hides)
                start = None
            elif c == "{":
                start = self.open_brace(statement, start, hides)
                continue
            self.at += 1

    def open_brace(self, statement, start, hides):
        """Returns where the statement goes on; None: it has ended."""
        match = SCOPE.match(statement)
        if match is None or statement.endswith(("=", ")")):
            initializer = statement.endswith("=") or "(" not in statement
            body = self.at
            self.skip_braces()
            if not initializer:
                self.add(start, body, hides)
                return None
            return start
        kind = match.group("kind")
        self.at += 1
        if kind in ("namespace", "extern"):
            self.scope("namespace", hides)
            return None
        self.add(start, self.at - 1, hides)
        self.scope("enum" if kind == "enum" else "class", hides)
        end = self.code.find(";", self.at)  # a name or a variable may follow
        self.at = len(self.code) if end < 0 else end + 1
        return None

    def add(self, start, end, hides):
        text = " ".join(self.code[start:end].split())
        if not hides and not re.match(r"friend\b", text):
            self.found.append(Declaration(self.line(start), self.line(end), text, "(" in text.split("=")[0]))


def declarations(text):
    parser = Parser(without_comments(text))
    parser.scope("namespace", False)
    # A macro but the guard; a macro that is defined twice is documented once.
    macros = set()
    for match in re.finditer(r"^#define (\w+)(?!\w)[^\n]*", text, re.MULTILINE):
        if match.group(1).endswith("_H_") or match.group(1) in macros:
            continue
        macros.add(match.group(1))
        line = text.count("\n", 0, match.start()) + 1
        parser.found.append(Declaration(line, line, match.group(), False))
    return parser.found


def above(lines, number):
    """Whether the line above line `number` (from 1) is a comment of its own."""
    line = lines[number - 2].strip() if number >= 2 else ""
    # Conditions around a macro stand between it and its comment.
    while number >= 3 and re.match(r"#(if|else|ifdef)", line):
        number -= 1
        line = lines[number - 2].strip()
    return line.startswith("//") and not line.startswith("// ----") or line.endswith("*/")


def undocumented(text):
    lines = text.split("\n")
    for d in sorted(declarations(text), key=lambda d: d.first):
        behind = not d.function and any(COMMENT_BEHIND.match(lines[n - 1])
                                        for n in range(d.first, d.last + 1))
        if not behind and not above(lines, d.first):
            yield d


def check(root):
    return [f"{path}:{d.first}: no comment: {d.text[:80]}"
            for path in headers(root) for d in undocumented(tree.read(root, path))]


def self_test(root):
    """Takes away the comment above, or behind, each declaration in turn."""
    failures, tried = [], 0
    for path in headers(root):
        text = tree.read(root, path)
        for d in declarations(text):
            lines = text.split("\n")
            for n in range(d.first, d.last + 1):
                if not d.function:
                    lines[n - 1] = re.sub(r"\s*//.*", "", lines[n - 1])
            n = d.first - 2
            while re.match(r"#(if|else|ifdef)", lines[n]):
                n -= 1
            while n >= 0 and lines[n].strip().startswith("//"):
                lines[n] = ""
                n -= 1
            tried += 1
            if not any(u.text == d.text for u in undocumented("\n".join(lines))):
                failures.append(f"{path}:{d.first}: not missed: {d.text[:80]}")
    if tried < 150:
        failures.append(f"only {tried} declarations found in {PUBLIC}")
    print(f"{tried} declarations")
    return failures


def main():
    root = sys.argv[1]
    problems = self_test(root) if "--self-test" in sys.argv[2:] else check(root)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
