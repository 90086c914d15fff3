"""The package as a text: types, style, documentation; the stubs describe the extension."""
import importlib.util
import inspect
import os
import subprocess
import sys

import pytest

import verbena
from verbena import _core

PACKAGE = os.path.join(os.environ["VERBENA_ROOT"], "worker", "python")
TESTS = os.path.dirname(os.path.abspath(__file__))


def run(*arguments):
    result = subprocess.run([sys.executable, "-m", *arguments], cwd=PACKAGE, text=True,
                            capture_output=True, timeout=250, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"no {module}")


@needs("mypy")
def test_types_are_strict():
    run("mypy", "--strict", "--no-incremental", "--cache-dir", os.devnull, "verbena")


@needs("flake8")
def test_style():
    run("flake8", "--max-line-length", "120", "verbena", "setup.py", TESTS)


def stubs():
    """Classes and functions of _core.pyi: names, with the names in classes."""
    found, inside = {}, None
    with open(os.path.join(PACKAGE, "verbena", "_core.pyi"), encoding="utf-8") as file:
        for line in file:
            words = line.replace("(", " ").replace(":", " ").split()
            if line.startswith("class "):
                inside = found.setdefault(words[1], set())
            elif line.startswith("def "):
                found[words[1]] = None
            elif line.startswith("    def "):
                inside.add(words[1])
    return found


def test_the_stubs_have_every_name_of_the_extension():
    described = stubs()
    assert set(described) == {name for name in vars(_core) if not name.startswith("__")}
    for name, members in described.items():
        if members is not None:
            own = {member for member in vars(getattr(_core, name))
                   if not member.startswith("__") or member in ("__len__", "__await__")}
            assert members - {"__init__"} == own, name


def public():
    """(name, object) of everything that a user may call or read."""
    named = [(name, getattr(verbena, name)) for name in verbena.__all__]
    if importlib.util.find_spec("torch") is not None:
        module = importlib.import_module("verbena.torch")
        named += [(name, getattr(module, name)) for name in module.__all__]
    for name, value in named:
        yield name, value
        if inspect.isclass(value) and not issubclass(value, Exception):
            own = {member for base in value.__mro__ if base.__module__.startswith("verbena")
                   for member in vars(base) if not member.startswith("_")}
            for member in sorted(own):
                yield f"{name}.{member}", getattr(value, member)


@pytest.mark.parametrize("name, value", public(), ids=[name for name, _ in public()])
def test_every_public_name_is_documented(name, value):
    text = (value.__doc__ or "").strip()
    # pybind11 puts the signature first.
    lines = [line for line in text.splitlines() if line.strip() and "self: verbena" not in line]
    assert lines, f"{name} has no documentation"
    for line in text.splitlines():
        assert len(line) <= 200 and "std::" not in line, f"{name}: {line}"
