#!/usr/bin/env python3
"""The table of optimizers in docs/optimizers.md has each parameter's default as shard/optimizer/ has it.

    optimizer_defaults_test.py ROOT
"""
import pathlib
import re
import sys

ROW = re.compile(r"^\| `(\w+)` \|.*\| (.*) \|$")
PARAMETER = re.compile(r'\{"(\w+)", ([\d.e-]+), ')
DEFINITION = re.compile(r'(?:return|Definition\()\s*\{?"(\w+)"')


def documented(readme):
    """optimizer -> {parameter: default}, of the rows that spell their defaults out."""
    table = readme.split("| name | formula | named parameters", 1)[1].split("\n\n", 1)[0]
    found = {}
    for line in table.splitlines():
        row = ROW.match(line)
        if row and "the same" not in row.group(2):
            found[row.group(1)] = {
                name: float(value) for name, value in re.findall(r"`(\w+)` ([\d.e-]+)", row.group(2))
            }
    return found


def defined(directory):
    found = {}
    for path in directory.glob("*.cc"):
        text = path.read_text()
        parameters = {name: float(value) for name, value in PARAMETER.findall(text)}
        for name in DEFINITION.findall(text):
            found[name] = parameters
    return found


def main():
    root = pathlib.Path(sys.argv[1])
    said = documented((root / "docs" / "optimizers.md").read_text())
    code = defined(root / "shard" / "optimizer")
    problems = [f"{name}: the reference has it, shard/optimizer/ has not" for name in said if name not in code]
    for name, parameters in code.items():
        for parameter, value in parameters.items():
            if name in said and said[name].get(parameter) != value:
                problems.append(
                    f"{name}: {parameter} is {value} by default, and the reference has "
                    f"{said[name].get(parameter)}")
    if len(said) < 8 or sum(map(len, code.values())) < 10:
        problems.append("too little was found: the table or the sources look different now")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
