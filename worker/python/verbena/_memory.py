"""The memory that this process may use: of the machine or its control group."""
from __future__ import annotations

import os
import resource
from typing import Iterator


def _limits() -> Iterator[str]:
    """Contents of the limits' files of the process's control groups and their ancestors."""
    groups = {("/sys/fs/cgroup", "/", "memory.max"),
              ("/sys/fs/cgroup/memory", "/", "memory.limit_in_bytes")}
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if not controllers:
                    groups.add(("/sys/fs/cgroup", path, "memory.max"))
                elif "memory" in controllers.split(","):
                    groups.add(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
    except (OSError, ValueError):
        pass
    for root, path, name in groups:
        while True:
            try:
                with open(os.path.join(root, path.strip("/"), name), encoding="utf-8") as file:
                    yield file.read().strip()
            except OSError:
                pass  # not this version of control groups
            if path.strip("/") == "":
                break
            path = os.path.dirname(path.rstrip("/"))


def usable_memory() -> int:
    """Bytes: the least of the machine's memory, the control groups' limits and ulimit -v."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    found += [int(limit) for limit in _limits() if limit.isdigit()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        found.append(soft)
    return min(found)
