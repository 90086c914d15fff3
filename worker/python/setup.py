"""Builds the extension against libverbena: an installed one, or a build folder's.

VERBENA_PREFIX  prefix of an installed libverbena, such as /usr/local
VERBENA_BUILD   build folder of a checkout; default: build/release of this one, where it exists
"""
import glob
import os
import re

import pybind11
from setuptools import Extension, setup

here = os.path.dirname(os.path.abspath(__file__))
checkout = os.path.join(here, "..", "..")


def folders():
    """Include folders, and the folder of the library."""
    prefix, build = os.environ.get("VERBENA_PREFIX"), os.environ.get("VERBENA_BUILD")
    if prefix is None and build is None and glob.glob(f"{checkout}/build/release/client/libverbena.so"):
        build = os.path.join(checkout, "build", "release")
    if prefix is None and build is not None:
        build = os.path.abspath(build)
        return [os.path.join(checkout, "client", "include"), os.path.join(build, "generated")], \
            os.path.join(build, "client")
    for root in [prefix] if prefix else ["/usr/local", "/usr"]:
        for library in glob.glob(f"{root}/lib*/**/libverbena.so", recursive=True):
            return [os.path.join(root, "include")], os.path.dirname(library)
    raise SystemExit("libverbena was not found; install it (cmake --install) and set VERBENA_PREFIX, "
                     "or build it and set VERBENA_BUILD")


def version(includes):
    """The version of the library's header."""
    for include in includes:
        path = os.path.join(include, "verbena", "version.h")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return re.search(r'VERBENA_VERSION_STRING "([^"]+)"', file.read()).group(1)
    raise SystemExit(f"verbena/version.h is not in {', '.join(includes)}")


def prepare():
    """A folder in which these sources are worker/python, as they include each other, and a source of
    all: most of the time goes into pybind11's headers, which are then read once."""
    root = os.path.join(here, "build", "include")
    os.makedirs(os.path.join(root, "worker"), exist_ok=True)
    link = os.path.join(root, "worker", "python")
    if not os.path.islink(link):
        os.symlink(here, link)
    names = sorted(os.path.relpath(path, here) for path in glob.glob(f"{here}/core/*.cc"))
    with open(os.path.join(here, "build", "all.cc"), "w", encoding="utf-8") as file:
        file.writelines(f'#include "worker/python/{name}"\n' for name in names)
    return root, names + [name[:-2] + "h" for name in names]


includes, library = folders()
root, files = prepare()
setup(
    version=version(includes),
    ext_modules=[Extension(
        "verbena._core", ["build/all.cc"], depends=files,
        include_dirs=[root, *includes, pybind11.get_include()], libraries=["verbena"],
        library_dirs=[library], runtime_library_dirs=[library], language="c++",
        extra_compile_args=["-std=c++20", "-O2", "-fvisibility=hidden"])],
)
