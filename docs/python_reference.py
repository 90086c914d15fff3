#!/usr/bin/env python3
"""Prints the reference of a Python module from its docstrings; docs/generate.py calls it.

    python_reference.py MODULE      the names in MODULE.__all__, as Markdown; exit status 77: the
                                    module needs one that is missing

A module with make_parser() is a program, too: its options come first. Signatures of the extension's functions are those of its stubs (_core.pyi).
"""
import ast
import importlib
import inspect
import os
import re
import sys
import textwrap


def stub_signatures(module):
    """Signatures by "Class.method" of the stubs beside the module."""
    path = os.path.join(os.path.dirname(module.__file__), "_core.pyi")
    found = {}
    with open(path, encoding="utf-8") as file:
        for node in ast.parse(file.read()).body:
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef):
                        found[f"{node.name}.{method.name}"] = arguments_text(method.args)
    return found


def arguments_text(arguments):
    """The arguments without types and `self`."""
    for argument in [*arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    arguments.args = arguments.args[1:]
    return f"({ast.unparse(arguments)})"


def signature_of(name, value, stubs):
    if name in stubs:
        return stubs[name]
    signature = inspect.signature(value)
    parameters = [p.replace(annotation=inspect.Parameter.empty)
                  for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def names_in(signature):
    return set(re.findall(r"\w+", signature))


def documentation(value):
    """The docstring without the signature that pybind11 puts first."""
    text = inspect.cleandoc(value.__doc__ or "")
    lines = text.splitlines()
    if lines and re.match(r"\w+\(self: ", lines[0]):
        text = inspect.cleandoc("\n".join(lines[1:]))
    return text


def entry_of(line, names):
    """A line "name, name: text" about arguments as an entry of a list; None if it is another line."""
    head, colon, rest = line.partition(": ")
    arguments = [name.strip() for name in head.split(",")]
    if not colon or line.startswith(" ") or not all(name in names for name in arguments):
        return None
    return "- " + ", ".join(f"`{name}`" for name in arguments) + ": " + rest


def markdown(text, signature):
    """Paragraphs; arguments become lists; indented paragraphs code."""
    out, names = [], names_in(signature)
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("    "):
            out.append("```python\n" + textwrap.dedent(paragraph) + "\n```")
            continue
        lines = []
        for line in paragraph.splitlines():
            entry = entry_of(line, names)
            if entry is not None:
                lines.append(entry)
            elif line.startswith(" ") and lines:
                lines[-1] += " " + line.strip()
            else:
                # A blank line ends a list.
                lines += [""] * bool(lines and lines[-1].startswith("- ")) + [line]
        out.append("\n".join(lines))
    return "\n\n".join(out).replace("<", "&lt;")


def function(level, name, value, stubs):
    signature = signature_of(name, value, stubs)
    call = textwrap.fill(name + signature, 100, subsequent_indent="    ", break_long_words=False)
    return f"{'#' * level} {name}\n\n```python\n{call}\n```\n\n" \
        f"{markdown(documentation(value), signature)}\n"


def own_members(value):
    """Public members of a class in the order of its sources, those of the extension's base first."""
    for base in reversed(value.__mro__[:-1]):
        if base.__module__.startswith("verbena"):
            for name, member in vars(base).items():
                if next(owner for owner in value.__mro__ if name in vars(owner)) is not base:
                    continue  # overridden
                if (not name.startswith("_") or name == "__await__") and getattr(value, name) is not None:
                    yield name, member


def klass(name, value, stubs):
    parts = [f"## {name}\n\n{markdown(documentation(value), '')}\n"]
    properties, methods = [], []
    if inspect.isfunction(vars(value).get("__init__")) and value.__init__.__doc__:
        parts.append(function(3, name, value.__init__, stubs).split("\n\n", 1)[1])
    for member, found in own_members(value):
        if isinstance(found, property):
            properties.append(f"| `{member}` | {' '.join(documentation(found).split())} |")
        elif callable(getattr(value, member)):
            methods.append(function(3, f"{name}.{member}", getattr(value, member), stubs))
    if properties:
        parts.append("| attribute | meaning |\n|---|---|\n" + "\n".join(properties) + "\n")
    return "\n".join(parts + methods)


def errors(classes):
    rows = ["| exception | bases | `code` | meaning |", "|---|---|---|---|"]
    for name, value in classes:
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        rows.append(f"| `{name}` | {bases} | {value.code} | {' '.join(documentation(value).split())} |")
    return "## Exceptions\n\n" + "\n".join(rows) + "\n"


def options(module):
    """The options of a program, from the module's make_parser()."""
    parser = module.make_parser()
    rows = ["| argument, option | default | meaning |", "|---|---|---|"]
    for action in parser._actions:  # there is no public list
        if action.dest == "help":
            continue
        names = ", ".join(action.option_strings) or action.metavar
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        text, default = action.help, "required" if action.required else ""
        found = re.fullmatch(r"(.*?)(?:; default: | \(default: )([^()]*)\)?", text)
        if found:
            text, default = found.groups()
        rows.append(f"| `{names}{value}` | {default} | {text} |")
    description = parser.description + " " + "; ".join(
        f"`{example}`" for example in parser.epilog.partition(": ")[2].split("; ")) + "."
    return f"## {parser.prog}\n\n{description}\n\n" + "\n".join(rows) + "\n"


def main():
    try:
        module = importlib.import_module(sys.argv[1])
    except ModuleNotFoundError:  # PyTorch
        sys.exit(77)
    stubs = stub_signatures(importlib.import_module("verbena"))
    named = [(name, getattr(module, name)) for name in module.__all__]
    failures = [(n, v) for n, v in named if inspect.isclass(v) and issubclass(v, Exception)]
    functions = [(n, v) for n, v in named if not inspect.isclass(v)]
    classes = [(n, v) for n, v in named if inspect.isclass(v) and (n, v) not in failures]
    parts = [options(module)] if hasattr(module, "make_parser") else []
    parts += [function(2 + len(parts), n, v, stubs) for n, v in functions if n != "main"]
    parts += [klass(n, v, stubs) for n, v in classes]
    if failures:
        parts.append(errors(failures))
    print("\n".join(parts), end="")


if __name__ == "__main__":
    main()
