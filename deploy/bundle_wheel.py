#!/usr/bin/env python3
"""Makes a wheel that needs nothing of the machine but the C and C++ compiler's libraries.

    bundle_wheel.py WHEEL BIN-DIR WORK-DIR OUT-DIR

Adds to WHEEL, which pip built, libverbena and the programs of BIN-DIR, and all libraries that they need.
Each library gets a name of its own, with a part of its checksum, so that the machine's library of the
same name, and that of another wheel, may be in the same process. deploy/wheel.sh calls this.
"""
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

# The machine's own: each has the loader and libc, and a libstdc++ newer than that of the tag.
SYSTEM = re.compile(r"(ld-linux[-\w]*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libgcc_s|"
                    r"libstdc\+\+)\.so\.\d+")
# Loaded by name at run time where the machine has them: they work only with its drivers.
AT_RUN_TIME = ("libibverbs.so.1", "librdmacm.so.1", "libfabric.so.1", "libcuda.so.1")
PROGRAMS = ("verbenad", "verbena")
# Headers whose code is in the binaries.
HEADER_PACKAGES = ("pybind11-dev", "nlohmann-json3-dev", "libcli11-dev", "libeigen3-dev")
# The first glibc of distributions whose libstdc++ has GLIBCXX_3.4.N: PEP 600 names only glibc.
GLIBC_OF_GLIBCXX = {29: 34, 30: 35, 31: 38, 32: 38, 33: 39}

# For the scripts that pip makes.
PROGRAMS_MODULE = '''"""Runs the programs of the package verbena, without the time that importing it takes."""
import os
import sys


def _run(name):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verbena", "bin", name)
    os.execv(program, [name, *sys.argv[1:]])


def verbenad():
    _run("verbenad")


def verbena():
    _run("verbena")
'''


def fail(problem):
    """Ends with the error."""
    sys.exit(f"wheel.sh: {problem}")


def run(*command):
    """The output of a command."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {done.stdout.strip()} (exit status {done.returncode})")
    return done.stdout


def needed(path):
    """Names of the libraries that a file needs."""
    return run("patchelf", "--print-needed", path).split()


def resolve(programs):
    """{name: path} of the libraries that the loader finds for these files."""
    found = {}
    for program in programs:
        for line in run("ldd", program).splitlines():
            match = re.match(r"\s*(\S+) => (.*?)(?: \(0x[0-9a-f]+\))?$", line)
            if not match:
                continue
            if match[2] == "not found":
                fail(f"{program} needs {match[1]}, which is not on this machine")
            found[match[1]] = Path(os.path.realpath(match[2]))
    return found


def closure(roots, paths):
    """Names of all libraries that these files need, except the machine's own."""
    names, todo = set(), list(roots)
    while todo:
        for name in needed(todo.pop()):
            if name not in names and not SYSTEM.fullmatch(name):
                if name in AT_RUN_TIME:
                    fail(f"a library is linked with {name}, which must be the machine's own")
                names.add(name)
                todo.append(paths[name])
    return sorted(names)


def weaken_unique(path):
    """Makes unique symbols weak. The loader has one definition of a unique symbol for all libraries of a
    process (static data of templates and inline functions), also for two versions of one library."""
    data = bytearray(path.read_bytes())
    if data[:6] != b"\x7fELF\x02\x01":
        fail(f"{path} is not a little-endian ELF file of 64 bits")
    offset, size, count = (struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A))
    for section in range(count):
        header = struct.unpack_from("<IIQQQQIIQQ", data, offset + section * size)
        if header[1] != 11:  # SHT_DYNSYM
            continue
        for symbol in range(header[4], header[4] + header[5], header[9]):
            if data[symbol + 4] >> 4 == 10:  # STB_GNU_UNIQUE
                data[symbol + 4] = 2 << 4 | data[symbol + 4] & 15  # STB_WEAK
    path.write_bytes(data)


def copy_stripped(source, target):
    """Copies an ELF file without debug information."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run("strip", "--strip-unneeded", "-o", target, source)
    target.chmod(0o755)


def private_name(name, path):
    """libssl.so.3 -> libssl-1a2b3c4d.so.3"""
    stem, rest = name.split(".so", 1)
    return f"{stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.so{rest}"


def add_libraries(package, bin_dir):
    """Adds programs and libraries; returns {name: path on this machine} of the libraries."""
    roots = [bin_dir / "client" / "libverbena.so", *(bin_dir / name for name in PROGRAMS)]
    paths = resolve(roots)
    libverbena = run("patchelf", "--print-soname", roots[0]).strip()
    paths[libverbena] = Path(os.path.realpath(roots[0]))
    names = [libverbena, *closure(roots, paths)]

    private = {}
    for name in names:
        copy = package / "libs" / name
        copy_stripped(paths[name], copy)
        weaken_unique(copy)
        private[name] = private_name(name, copy)
        copy.rename(package / "libs" / private[name])
    for name in PROGRAMS:
        copy_stripped(bin_dir / name, package / "bin" / name)

    extension, = package.glob("_core*.so")
    copy_stripped(extension, extension.with_suffix(".stripped"))
    extension.with_suffix(".stripped").rename(extension)
    weaken_unique(extension)
    targets = [(extension, "$ORIGIN/libs"), *((package / "bin" / name, "$ORIGIN/../libs") for name in PROGRAMS),
               *((package / "libs" / name, "$ORIGIN") for name in private.values())]
    for path, folder in targets:
        # One change a call: patchelf 0.14 loses some of several.
        if path.parent.name == "libs":
            run("patchelf", "--set-soname", path.name, path)
        replaced = [["--replace-needed", name, private[name]] for name in needed(path) if name in private]
        if replaced:
            run("patchelf", *sum(replaced, []), path)
        run("patchelf", "--set-rpath", folder, path)
        check(path, folder, set(private.values()))
    return {name: paths[name] for name in names}


def check(path, folder, own):
    """Ends with an error if a file of the wheel would use a library outside of it."""
    if run("patchelf", "--print-rpath", path).strip() != folder:
        fail(f"{path.name} does not look into {folder}")
    foreign = [name for name in needed(path) if name not in own and not SYSTEM.fullmatch(name)]
    if foreign:
        fail(f"{path.name} still needs {', '.join(foreign)}")


def package_of(path):
    """Debian's package of a file."""
    names = [str(path)]
    if names[0].startswith("/usr/"):
        names.append(names[0][4:])  # packages name files of the merged /usr by both paths
    for name in names:
        try:
            found = subprocess.run(["dpkg-query", "--search", name], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, check=False)
        except FileNotFoundError:
            fail("there is no dpkg-query, which finds the licences of the libraries; use Debian 12")
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    return fail(f"no package has {path}, so its licence is not known; install the library from Debian")


def add_licences(folder, libraries, root):
    """Adds the copyright files of all that is in the wheel, and a list."""
    libverbena = next(iter(libraries))
    lines = ["The libraries in this wheel, and the packages of Debian that they are from. COPYRIGHT/NAME is the",
             "copyright file of a package; the sources are at https://snapshot.debian.org.", ""]
    packages = {}
    for name, path in libraries.items():
        if name != libverbena:
            packages.setdefault(package_of(path), []).append(name)
    for package in HEADER_PACKAGES:
        packages.setdefault(package, ["(headers)"])
    (folder / "COPYRIGHT").mkdir(parents=True)
    shutil.copy(root / "deploy" / "copyright", folder / "COPYRIGHT" / "verbena")
    for package, names in sorted(packages.items()):
        source = Path("/usr/share/doc") / package / "copyright"
        if not source.exists():
            fail(f"there is no {source}, which the wheel has to contain; reinstall the package: "
                 f"apt-get install --reinstall {package}")
        shutil.copy(source, folder / "COPYRIGHT" / package)
        versions = "${Version}, source ${source:Package} ${source:Version}\n"
        version = run("dpkg-query", "--show", "--showformat", versions, package).splitlines()[0]
        lines.append(f"{package} {version}: {' '.join(names)}")
    (folder / "LIBRARIES").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # Debian's copyright files refer to texts outside of them.
    common = set()
    for copyright_file in (folder / "COPYRIGHT").iterdir():
        text = copyright_file.read_text(encoding="utf-8", errors="replace")
        common.update(name.rstrip(".") for name in re.findall(r"/usr/share/common-licenses/([\w.+-]+)", text))
    (folder / "common-licenses").mkdir()
    for name in sorted(common):
        if (Path("/usr/share/common-licenses") / name).exists():
            shutil.copy(Path("/usr/share/common-licenses") / name, folder / "common-licenses" / name)


def add_programs(tree, information):
    """Adds a module by which pip makes scripts for the programs."""
    (tree / "verbena_programs.py").write_text(PROGRAMS_MODULE, encoding="utf-8")
    heading = "[console_scripts]\n"
    entries = (information / "entry_points.txt").read_text(encoding="utf-8")
    if heading not in entries:
        fail("the package has no scripts, to which the programs could be added")
    added = "".join(f"{name} = verbena_programs:{name}\n" for name in PROGRAMS)
    (information / "entry_points.txt").write_text(entries.replace(heading, heading + added), encoding="utf-8")
    with open(information / "top_level.txt", "a", encoding="utf-8") as file:
        file.write("verbena_programs\n")


def platform_tag(package, plain):
    """The tag after PEP 600, for the oldest glibc and libstdc++ that the files work with."""
    glibc, glibcxx = 17, 0
    for path in [*package.rglob("*.so*"), *(package / "bin").iterdir()]:
        versions = run("readelf", "--version-info", "--wide", path)
        glibc = max([glibc, *(int(n) for n in re.findall(r"Name: GLIBC_2\.(\d+)", versions))])
        glibcxx = max([glibcxx, *(int(n) for n in re.findall(r"Name: GLIBCXX_3\.4\.(\d+)", versions))])
    own = int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1])
    glibc = max(glibc, GLIBC_OF_GLIBCXX.get(glibcxx, own if glibcxx > max(GLIBC_OF_GLIBCXX) else 0))
    return re.sub(r"linux_(\w+)$", rf"manylinux_2_{glibc}_\1", plain), glibc, glibcxx


def summary(libraries):
    """Names of libraries; Abseil's many as one."""
    names = [re.sub(r"\.so.*", "", name) for name in libraries]
    abseil = [name for name in names if name.startswith("libabsl_")]
    return ", ".join([*(name for name in names if name not in abseil), f"libabsl_* ({len(abseil)})"])


def main():
    """Makes the wheel."""
    wheel, bin_dir, work, out = map(Path, sys.argv[1:])
    root = Path(__file__).resolve().parent.parent
    run(sys.executable, "-m", "wheel", "unpack", "--dest", work / "tree", wheel)
    tree, = (work / "tree").iterdir()
    information, = tree.glob("*.dist-info")
    libraries = add_libraries(tree / "verbena", bin_dir)
    print(f"== adding the licences of {len(libraries)} libraries", flush=True)
    add_licences(information / "licenses", libraries, root)

    add_programs(tree, information)
    text = (information / "WHEEL").read_text(encoding="utf-8")
    plain = re.search(r"^Tag: \S+-(\S+)$", text, re.MULTILINE)[1]
    tag, glibc, glibcxx = platform_tag(tree / "verbena", plain)
    (information / "WHEEL").write_text(text.replace(plain, tag), encoding="utf-8")

    print("== packing", flush=True)
    (work / "packed").mkdir()
    run(sys.executable, "-m", "wheel", "pack", "--dest-dir", work / "packed", tree)
    packed, = (work / "packed").iterdir()
    partial = out / f".{packed.name}.{os.getpid()}"
    try:
        shutil.copy(packed, partial)
        partial.replace(out / packed.name)
    except OSError as error:
        fail(f"cannot write {out / packed.name}: {error.strerror}; free space there, or give another OUTDIR")
    finally:
        partial.unlink(missing_ok=True)
    installed = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    print(f"made {out / packed.name}: {packed.stat().st_size / 2**20:.1f} MiB, installed {installed / 2**20:.0f} MiB; "
          f"needs glibc 2.{glibc} and libstdc++ with GLIBCXX_3.4.{glibcxx}; contains {', '.join(PROGRAMS)} and "
          f"{len(libraries)} libraries: {summary(libraries)}")


if __name__ == "__main__":
    main()
