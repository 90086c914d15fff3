"""python3 -m verbena: versions and places of the package, for reports of errors."""
import argparse
import importlib.metadata
import os
import platform
import sys
from typing import Optional, Sequence

from . import __version__, _core, find_verbenad


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Prints versions and places. Returns the exit status: 0."""
    parser = argparse.ArgumentParser(prog="python3 -m verbena",
                                     description="Prints versions and places of the package verbena.")
    parser.add_argument("--version", action="version", version=f"verbena {__version__}")
    parser.parse_args(arguments)
    try:
        verbenad = find_verbenad()
    except FileNotFoundError as error:
        verbenad = f"none: {error}"
    print(f"verbena   {__version__}\n"
          f"package   {os.path.dirname(os.path.abspath(__file__))}\n"
          f"library   {_core.library_path()}\n"
          f"verbenad  {verbenad}\n"
          f"python    {platform.python_version()} ({sys.executable})\n"
          f"numpy     {_version_of('numpy')}\n"
          f"torch     {_version_of('torch')}\n"
          f"system    {platform.platform()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
