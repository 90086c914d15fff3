"""The files of the project, as the structure tests see them."""
import os

MODULES = ("proto", "rdma", "shard", "server", "client", "worker")
FOLDERS = MODULES + ("deploy", "tests", "bench", "docs")


def files(root, folders=FOLDERS, suffixes=None):
    """Paths relative to `root`, sorted, of the files below `folders` that end in `suffixes`."""
    found = []
    for folder in folders:
        for place, subfolders, names in os.walk(os.path.join(root, folder)):
            subfolders[:] = [d for d in subfolders if d != "__pycache__" and not d.startswith("build")]
            for name in names:
                if suffixes is None or name.endswith(suffixes):
                    found.append(os.path.relpath(os.path.join(place, name), root))
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        return f.read()
