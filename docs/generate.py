#!/usr/bin/env python3
"""Generated parts of reference pages; docs/generate.sh calls it.

    generate.py write|check FOLDER BUILD

A page in FOLDER is written by hand, except the text between these two lines:

    <!-- generated: SOURCE -->
    <!-- end of generated text -->

SOURCE is `options PROGRAM` (its --help), `commands PROGRAM` (the --help of each command below it),
`describe KIND` (the output of verbena_describe), or `python MODULE` (its docstrings; without a Python package in
BUILD the text stays).
"""
import difflib
import os
import re
import subprocess
import sys

PART = re.compile(r"(<!-- generated: (\w+) ([\w.-]+) -->\n)(.*?)(<!-- end of generated text -->\n)", re.DOTALL)
# Titles of the first group of options, which --help calls "Options".
FIRST_GROUP = {"verbenad": "Role and network", "verbena-train": "Data, model and training",
               "verbena": "Options of all commands"}


class Entry:
    """An option, an argument or a command in a --help."""

    def __init__(self, head):
        self.head, self.text = head, ""


class Help:
    """The text of --help, as proto/base/help_formatter.h writes it."""

    def __init__(self, text):
        self.about, self.groups, self.examples = "", [], []
        part = "about"
        for line in text.splitlines():
            group = re.fullmatch(r"([A-Z][\w() ,]*):", line)
            if line.startswith("Usage: "):
                part = "groups"
            elif group and group.group(1) in ("Example", "Examples"):
                part = "examples"
            elif group:
                part = "groups"
                self.groups.append((group.group(1), []))
            elif part == "about":
                self.about += line + "\n"
            elif part == "examples":
                if line and not line.startswith("  "):
                    part = "end"
                elif line:
                    self.examples.append(line[2:])
            elif part == "groups" and line.startswith("  ") and self.groups:
                self.entry(line)
        self.about = self.about.strip()

    def entry(self, line):
        entries = self.groups[-1][1]
        if line.startswith(" " * 20):
            entries[-1].text += (" " if entries[-1].text else "") + line.strip()
            return
        head, _, text = line[2:].partition("  ")
        entries.append(Entry(head.strip()))
        entries[-1].text = text.strip()

    def group(self, name):
        return next((entries for known, entries in self.groups if known == name), [])


class Programs:
    def __init__(self, build):
        self.build = build

    def run(self, program, *arguments):
        path = os.path.join(self.build, program)
        if not os.path.exists(path):
            sys.exit(f"docs/generate.sh: {path} does not exist; build it, or name another build folder")
        return subprocess.run([path, *arguments], check=True, capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ.get("PATH", "")}).stdout

    def help(self, program, *command):
        return Help(self.run(program, *command, "--help"))


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def notes_of(text):
    """The sentence, and its default and allowed values: from parentheses at its end, or from a short "default: ..." there."""
    notes = {}
    match = re.fullmatch(r"(.*?) \(((?:required|default: |allowed: )[^()]*)\)", text)
    if match:
        text = match.group(1)
        for note in re.split(r"; (?=default: |allowed: )", match.group(2)):
            name, _, value = note.partition(": ")
            notes[name] = value or "yes"
    match = re.fullmatch(r"(.*?)[.;] [Dd]efault: ([^.;]{1,60})", text)
    if match:
        text, notes["default"] = match.groups()
    return text, notes


def table(first, entries):
    rows = []
    for entry in entries:
        text, notes = notes_of(entry.text)
        if not text:
            sys.exit(f"docs/generate.sh: {entry.head} has no text in --help")
        default = "required" if "required" in notes else notes.get("default", "")
        rows.append([f"`{entry.head}`".replace("|", "\\|"), cell(default), notes.get("allowed", ""), cell(text)])
    titles = [first, "default", "allowed", "meaning"]
    filled = [n for n in range(4) if n in (0, 3) or any(row[n] for row in rows)]
    lines = [titles, ["---"] * 4, *rows]
    return "".join("| " + " | ".join(line[n] for n in filled) + " |\n" for line in lines)


def own_options(entries):
    return [entry for entry in entries if entry.head not in ("-h,--help", "--version")]


def options(programs, program):
    out = []
    for name, entries in programs.help(program).groups:
        if name in ("Subcommands", "Positionals"):
            continue
        title = FIRST_GROUP[program] if name == "Options" else name
        out.append(f"## {title}\n\n" + table("option", own_options(entries)))
    return "\n".join(out)


def commands(programs, program):
    common = {entry.head for entry in programs.help(program).group("Options")}
    out = []

    def walk(command):
        shown = programs.help(program, *command)
        below = shown.group("Subcommands")
        arguments = shown.group("Positionals")
        own = [entry for entry in own_options(shown.group("Options")) if entry.head not in common]
        if command:
            title = " ".join([program, *command, *(entry.head for entry in arguments)])
            out.append(f"### {title}\n\n{shown.about.rstrip('.')}.\n")
            if own or arguments:
                out.append(table("argument, option", arguments + own))
            if shown.examples and (below or len(command) == 1):
                out.append("```sh\n" + "\n".join(shown.examples) + "\n```\n")
        for entry in below:
            walk([*command, entry.head])

    walk([])
    return "\n".join(out)


def describe(programs, kind):
    text = programs.run("tests/structure/verbena_describe", kind).rstrip("\n") + "\n"
    for name in re.findall(r"^### (.*)$", text, re.MULTILINE):  # types that are objects of the page
        text = re.sub(r"^(\| `\w+` \| (?:list of )?)%s(?= \||,| or null)" % re.escape(name),
                      r"\1[%s](#%s)" % (name, name.replace(" ", "-")), text, flags=re.MULTILINE)
    return text


def python(programs, module):
    package = os.path.join(programs.build, "python")
    try:
        with open(os.path.join(package, "interpreter"), encoding="utf-8") as f:
            interpreter = f.read().strip()
    except FileNotFoundError:
        return None
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_reference.py")
    printed = subprocess.run([interpreter, script, module], check=False, capture_output=True, text=True, timeout=600,
                             env={**os.environ, "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"})
    if printed.returncode == 77:
        return None
    printed.check_returncode()
    return printed.stdout


def generated(programs, part):
    begin, source, kind, old, end = part.groups()
    text = SOURCES[source](programs, kind)
    return f"{begin}\n{text}\n{end}" if text is not None else f"{begin}{old}{end}"


# Pages that a command prints whole.
WHOLE = {"table-options.md": ("verbena", "table", "options", "--markdown")}
SOURCES = {"options": options, "commands": commands, "describe": describe, "python": python}


def main():
    mode, folder, build = sys.argv[1:]
    programs, stale, parts = Programs(build), False, 0
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".md")):
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8") as f:
            old = f.read()
        parts += len(PART.findall(old))
        if name in WHOLE:
            new = programs.run(*WHOLE[name])
        else:
            new = PART.sub(lambda part: generated(programs, part), old)
        if new == old:
            continue
        stale = True
        if mode == "write":
            with open(path, "w", encoding="utf-8") as f:
                f.write(new)
        else:
            sys.stdout.writelines(difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), f"docs/reference/{name} (committed)",
                f"docs/reference/{name} (programs)"))
    if parts < 5:
        print(f"{folder}: only {parts} generated parts were found")
        return 1
    if mode == "check" and stale:
        print("docs/reference/ is stale: run docs/generate.sh")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
