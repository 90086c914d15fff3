"""Builds the extension against libverbena: an installed one, or a build folder's.

VERBENA_PREFIX  prefix of an installed libverbena, such as /usr/local
VERBENA_BUILD   build folder of a checkout
Without both: build/release of this checkout, then pkg-config, then the prefixes in CMAKE_PREFIX_PATH,
/usr/local and /usr.
"""
import atexit
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

here = os.path.dirname(os.path.abspath(__file__))
checkout = os.path.dirname(os.path.dirname(here))


def fail(problem):
    """Ends with the error."""
    raise SystemExit(f"verbena: {problem}")


def check_setuptools():
    """Ends with an error if they are too old: pip does not look with --no-build-isolation."""
    version = tuple(int(number) for number in re.findall(r"\d+", setuptools.__version__)[:2])
    if version < (61, 0):
        fail(f"setuptools is {setuptools.__version__}; install 61 or later: pip install 'setuptools>=61' wheel")
    if version < (70, 1) and importlib.util.find_spec("wheel") is None:
        fail("there is no wheel for this Python; install it (Debian: apt-get install python3-wheel; "
             "otherwise: pip install wheel), or leave out --no-build-isolation")


class Library:
    """Where libverbena and its headers are."""

    def __init__(self, includes, folder):
        self.includes, self.folder = includes, folder

    def missing(self):
        """The path that is missing, or None."""
        for path in (self.file(), self.header("verbena.h"), self.header("version.h")):
            if not os.path.exists(path):
                return path
        return None

    def file(self):
        """The library."""
        return os.path.join(self.folder, "libverbena.so")

    def header(self, name):
        """This header of verbena/; one that is missing has the path of the first folder."""
        paths = [os.path.join(include, "verbena", name) for include in self.includes]
        return next(filter(os.path.exists, paths), paths[0])

    def version(self):
        """The version of the headers."""
        with open(self.header("version.h"), encoding="utf-8") as file:
            return re.search(r'VERBENA_VERSION_STRING "([^"]+)"', file.read()).group(1)


def built(folder):
    """The library of a build folder, whose checkout may be another one."""
    folder, source = os.path.abspath(folder), checkout
    cache = os.path.join(folder, "CMakeCache.txt")
    if os.path.exists(cache):
        with open(cache, encoding="utf-8") as file:
            source = re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.*)$", file.read(), re.MULTILINE).group(1)
    return Library([os.path.join(source, "client", "include"), os.path.join(folder, "generated")],
                   os.path.join(folder, "client"))


def installed(prefix):
    """The library of a prefix."""
    prefix = os.path.abspath(prefix)
    folders = [f"{prefix}/lib", f"{prefix}/lib64", *sorted(glob.glob(f"{glob.escape(prefix)}/lib/*-linux-*"))]
    candidates = [Library([f"{prefix}/include"], folder) for folder in folders]
    return next((library for library in candidates if os.path.exists(library.file())), candidates[0])


def from_pkg_config():
    """The library that pkg-config finds, or None."""
    answers = []
    for variable in ("includedir", "libdir"):
        try:
            answers.append(subprocess.run(
                [os.environ.get("PKG_CONFIG", "pkg-config"), f"--variable={variable}", "verbena"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            return None
    return Library([answers[0]], answers[1])


def find():
    """The library; ends with an error if there is none."""
    for variable, locate in (("VERBENA_PREFIX", installed), ("VERBENA_BUILD", built)):
        if os.environ.get(variable):
            library = locate(os.environ[variable])
            if library.missing():
                fail(f"{variable} is {os.environ[variable]}, which has no libverbena (missing: "
                     f"{library.missing()}); wanted: the argument of cmake --install BUILD --prefix PREFIX"
                     if variable == "VERBENA_PREFIX" else
                     f"{variable} is {os.environ[variable]}, which has no libverbena (missing: "
                     f"{library.missing()}); build it: ninja -C {os.environ[variable]} verbena_shared")
            return library
    prefixes = [path for path in re.split("[:;]", os.environ.get("CMAKE_PREFIX_PATH", "")) if path]
    candidates = [built(os.path.join(checkout, "build", "release")), from_pkg_config(),
                  *map(installed, [*prefixes, "/usr/local", "/usr"])]
    for library in candidates:
        if library and not library.missing():
            return library
    places = ", ".join(library.folder for library in candidates if library)
    fail(f"libverbena was not found (looked into {places}); install it: cmake --install build/release "
         "--prefix PREFIX, and set VERBENA_PREFIX=PREFIX; or build it: cmake --preset release && "
         "cmake --build --preset release --target verbena_shared, and set VERBENA_BUILD=build/release")


def check_tools():
    """Ends with an error if something to compile with is missing."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    linker = (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()[0]
    for program in (compiler, linker):
        if shutil.which(program) is None:
            fail(f"there is no compiler {program}; install it (Debian: apt-get install g++), or set CC and "
                 "CXX to g++ 10 or later")
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        fail(f"there is no {header}; install the headers of Python (Debian: apt-get install python3-dev)")
    try:
        import pybind11  # pylint: disable=import-outside-toplevel
    except ImportError:
        fail("there is no pybind11 for this Python; install it (Debian: apt-get install python3-pybind11; "
             "otherwise: pip install pybind11), or leave out --no-build-isolation")
    return pybind11.get_include()


class BuildExtension(build_ext):
    """Compiles all sources at once, as most of the time goes into pybind11's headers."""

    def build_extension(self, ext):
        ext.include_dirs.append(check_tools())
        print(f"verbena: with {library.file()}, version {library.version()}", flush=True)
        # In this folder the sources are worker/python, as they include each other.
        root = os.path.join(os.path.abspath(self.build_temp), "include")
        os.makedirs(os.path.join(root, "worker"), exist_ok=True)
        if not os.path.islink(os.path.join(root, "worker", "python")):
            os.symlink(here, os.path.join(root, "worker", "python"))
        source = os.path.join(root, "all.cc")
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(f'#include "worker/python/{name}"\n' for name in ext.sources)
        ext.sources, ext.include_dirs = [source], [root, *ext.include_dirs]
        super().build_extension(ext)


# Nothing of one build is left for the next, which may be for another library or at the same time, and
# the sources may be read-only.
check_setuptools()
# Before files are copied: the error is then the end of a short output.
if {"bdist_wheel", "build", "build_ext", "dist_info", "editable_wheel"} & set(sys.argv):
    check_tools()
work = tempfile.mkdtemp(prefix="verbena-python-")
atexit.register(shutil.rmtree, work, ignore_errors=True)
library = find()
setup(
    version=library.version(),
    ext_modules=[Extension(
        "verbena._core", sorted(os.path.relpath(path, here) for path in glob.glob(f"{here}/core/*.cc")),
        include_dirs=library.includes, libraries=["verbena"], library_dirs=[library.folder],
        runtime_library_dirs=[library.folder], language="c++",
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden"])],
    cmdclass={"build_ext": BuildExtension},
    options={"build": {"build_base": work}, "egg_info": {"egg_base": work}},
)
