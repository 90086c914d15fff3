#!/usr/bin/env bash
# deploy/wheel.sh: a wheel that works in a tree with nothing but glibc, libstdc++, Python and NumPy, beside
# PyTorch with its own libraries, and that needs each library that it contains.
set -euo pipefail
shopt -s extglob
root=$1 build=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
fail() { printf 'FAILED: %s\n' "$*"; exit 1; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }
unshare --mount sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || skip "this user may not mount"
for module in pybind11 setuptools wheel pip numpy; do
  /usr/bin/python3 -c "import $module" 2>/dev/null || skip "no $module"
done
command -v patchelf >/dev/null || skip "no patchelf"

# ---- making it -----------------------------------------------------------------------------------
out="$here/folder with spaces"
bash "$root/deploy/wheel.sh" --bin-dir "$build" "$out" >"$here/log" 2>&1 || { cat "$here/log"; fail "wheel.sh"; }
wheel=$(find "$out" -type f)
[[ $wheel == *-manylinux_2_+([0-9])_"$(uname -m)".whl ]] || fail "the files are '$wheel'"
tail -n 1 "$here/log"
for text in "made $wheel: " "verbenad, verbena and " "libgrpc++" "libabsl_*"; do
  tail -n 1 "$here/log" | grep -qF "$text" || fail "the last line has no '$text'"
done
site=$here/tree/opt/site
/usr/bin/python3 -m pip install --quiet --no-deps --no-index --disable-pip-version-check --root-user-action=ignore \
  --target "$site" "$wheel" || fail "pip does not install it"
information=$(echo "$site"/verbena-*.dist-info)
for name in verbena libgrpc++1.51 libssl3 pybind11-dev; do
  [ -s "$information/licenses/COPYRIGHT/$name" ] || fail "no licence of $name"
done
[ -s "$information/licenses/common-licenses/Apache-2.0" ] || fail "no text of the Apache licence"

# ---- the bare tree -------------------------------------------------------------------------------
tree=$here/tree
# libraries FILE... : those that are linked, and the loader.
libraries() { ldd "$@" 2>/dev/null | sed -nE 's/.*=> (\/[^ ]+) .*/\1/p; s/^\s*(\/[^ ]*ld-linux[^ ]*) .*/\1/p' | sort -u; }
put() {  # FILE... : with its folders, as the file itself
  local file
  for file; do
    mkdir -p "$tree${file%/*}"
    cp -L "$file" "$tree$file"
  done
}
numpy=$(/usr/bin/python3 -c 'import numpy, os; print(os.path.dirname(numpy.__file__))')
standard=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
mkdir -p "$tree"/{tmp,proc,dev,etc} "$tree$standard" "$tree${numpy%/*}"
cp -rL "$numpy" "$tree${numpy%/*}/"
tar -C "$standard" --exclude=test --exclude=__pycache__ --exclude='config-*' -c . | tar -C "$tree$standard" -x
mapfile -t extensions < <(find "$numpy" "$standard/lib-dynload" -name '_ctypes.*.so' -o -name '*.so' -path "$numpy/*")
mapfile -t files < <(libraries /usr/bin/python3 /usr/bin/env "${extensions[@]}"; libraries /usr/lib/*/libstdc++.so.6)
libc=$(printf '%s\n' "${files[@]}" | grep -m 1 '/libc\.so\.6$')
put /usr/bin/python3 /usr/bin/env "${files[@]}" /usr/lib/*/libstdc++.so.6 \
  "${libc%/*}"/lib{dl.so.2,pthread.so.0,rt.so.1,util.so.1,resolv.so.2}  # the rest of glibc
more=$(find "$tree/lib" "$tree/usr/lib" "$tree/lib64" -name 'lib*.so*' -not -path '*/python3*' -printf '%f\n' |
  grep -vE '^lib(c|m|dl|pthread|rt|util|resolv|gcc_s|stdc\+\+|expat|z|ffi|blas|lapack|gfortran|quadmath)\.so') || true
[ -z "$more" ] || fail "the tree is not bare: $more"

# inside COMMAND... : runs it there, with nothing of this environment.
inside() {
  # shellcheck disable=SC2016 # The inner shell expands them.
  unshare --mount bash -c '
    mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 1
    tree=$1; shift
    exec chroot "$tree" /usr/bin/env -i PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1 TMPDIR=/tmp "$@"' _ "$tree" "$@"
}
cat >"$tree/tmp/use.py" <<'PYTHON'
import os
import subprocess

import verbena

package = os.path.dirname(verbena.__file__)
assert verbena.find_verbenad() == f"{package}/bin/verbenad", verbena.find_verbenad()
assert verbena._core.library_path().startswith(f"{package}/libs/libverbena-"), verbena._core.library_path()
with verbena.local_cluster() as cluster, verbena.connect(cluster, job="bare") as client:
    table = client.table("weights", shape=(1000,), optimizer="sgd", rate=0.1)
    gradient, weights = client.empty(table.shape), client.empty(table.shape)
    for step in range(10):
        gradient[:] = weights - 1
        client.push_pull(table, gradient, weights).wait()
    status = subprocess.run(["/usr/bin/python3", "/opt/site/bin/verbena", "status", "--cluster", str(cluster)],
                            stdout=subprocess.PIPE, text=True, check=True).stdout
    print(status)
    with open(os.path.join(cluster.directory, "server-0.log"), encoding="utf-8") as log:
        print(log.read())
    print(f"weights[0] = {weights[0]:.4f}")
PYTHON
inside /usr/bin/python3 /tmp/use.py >"$here/use" 2>&1 || { cat "$here/use"; fail "the bare tree"; }
grep -qx "weights\[0\] = 0.6513" "$here/use" || { cat "$here/use"; fail "the bare tree: another result"; }
grep -q "not verbs: no rdma-core: libibverbs.so.1" "$here/use" || { cat "$here/use"; fail "no reason for the missing verbs"; }
printf 'in the bare tree: %s\n' "$(tail -n 1 "$here/use")"
said=$(inside /usr/bin/python3 /opt/site/bin/verbenad --version) || fail "verbenad --version: $said"
[ "$said" = "verbenad $(inside /usr/bin/python3 -c 'import verbena; print(verbena.__version__)')" ] ||
  fail "verbenad --version: $said"
inside /usr/bin/python3 -m verbena >"$here/use" || fail "python3 -m verbena"
grep -qx "verbenad  /opt/site/verbena/bin/verbenad" "$here/use" || { cat "$here/use"; fail "another verbenad"; }

# ---- each library is needed, and is found in the wheel alone ---------------------------------------
cat >"$tree/tmp/needed.py" <<'PYTHON'
import glob
import os
import subprocess

loader = glob.glob("/lib*/**/ld-linux-*", recursive=True)[0]
files = [*glob.glob("/opt/site/verbena/_core*.so"), *glob.glob("/opt/site/verbena/bin/*")]
assert len(files) == 3, files


def complete():
    return all(subprocess.run([loader, "--list", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              check=False).returncode == 0 for file in files)


assert complete()
libraries = glob.glob("/opt/site/verbena/libs/*")
for library in libraries:
    os.rename(library, "/tmp/away")
    assert not complete(), f"nothing in the bare tree needs {library}"
    os.rename("/tmp/away", library)
print(f"each of {len(libraries)} libraries is needed")
PYTHON
inside /usr/bin/python3 /tmp/needed.py || fail "libraries of the wheel"
mv "$site"/verbena/libs/librocksdb-* "$here/away.so"
! inside /usr/bin/python3 /tmp/use.py >"$here/use" 2>&1 || fail "verbenad works without librocksdb"
grep -q "librocksdb-[0-9a-f]*.so.* cannot open shared object file" "$here/use" ||
  { cat "$here/use"; fail "the error does not name librocksdb"; }

# ---- in a virtual environment, beside PyTorch, which has libraries of the same names ---------------
environment="$out/environment"
/usr/bin/python3 -m venv --system-site-packages --without-pip "$environment"
/usr/bin/python3 -m pip --python "$environment/bin/python" install --quiet --no-deps --no-index \
  --disable-pip-version-check "$wheel" || fail "pip does not install it into a virtual environment"
for program in verbenad verbena; do
  "$environment/bin/$program" --version | grep -q "^$program [0-9]" || fail "$environment/bin/$program"
done
if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  for order in "torch, verbena.torch" "verbena, torch"; do
    (cd / && env -i "$environment/bin/python" -c "
import $order
exec(open('$root/worker/python/examples/ten_lines.py').read())
print(torch.ones(2, 2).sum())") >"$here/use" 2>&1 || { cat "$here/use"; fail "import $order"; }
  done
fi
echo "all is well"
