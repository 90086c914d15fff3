#!/usr/bin/env python3
"""Fails on an include against the dependencies of the modules.

    includes_test.py ROOT              checks the tree
    includes_test.py ROOT --self-test  plants forbidden includes in a copy and expects each found

CMake makes most of these fail to compile too; this test names the rule, and covers the cases that
CMake cannot see (a header-only use, a system header in a pure module).
"""
import os
import re
import shutil
import sys
import tempfile

import tree

# The modules that a module may include. A module not named here (tests, bench) may include all.
ARROWS = {
    "proto": {"proto"},
    "rdma": {"proto", "rdma"},
    "shard": {"proto", "shard"},
    "client": {"proto", "rdma", "client"},
    "worker": {"proto", "rdma", "client", "worker"},
    "server": {"proto", "rdma", "shard", "server"},
}
# Exceptions to the above: prefix of the included path -> module that may include it too.
ALSO = {"shard/codec/": {"client", "worker"}}

# The operator's program is a user of the installed library: prefix of the path -> pattern of the
# HEADERS that it may include.
USERS = {"server/cli/verbena/": r"verbena/client\.h"}

# System and library headers: (pattern, where it is allowed or None, where it is forbidden or None,
# why). Paths are prefixes.
HEADERS = (
    (r"(proto|rdma|shard|client|worker|server)/", None, ("client/include/",),
     "a public header includes public headers alone (verbena/...)"),
    (r"verbena/(client|verbena|rdma_options|status|half_numbers|table_enums)\.h", None,
     ("proto/", "rdma/", "shard/", "server/"),
     "the client's interface; below it, public headers of types alone (verbena/half.h, verbena/memory_kind.h)"),
    (r"rdma/sim/", ("rdma/sim/", "tests/", "bench/coordinator/"), None,
     "the sim transport is for tests and the simulated cluster of a benchmark: no installed program has it"),
    (r"prometheus/", ("server/metrics/",), None, "only server/metrics knows Prometheus"),
    (r"rocksdb/", ("server/cold/", "tests/server/cold/"), None, "only server/cold knows RocksDB"),
    (r"sqlite3\.h", ("server/coordinator/", "tests/server/"), None, "only the coordinator's store knows SQLite"),
    (r"nlohmann/", ("server/checkpoint/files/",), None,
     "only server/checkpoint/files parses JSON of others; proto/base/json.h writes ours"),
    (r"(grpcpp|grpc)/|.*\.grpc\.pb\.h",
     ("proto/control/grpc_", "proto/security/grpc_", "server/", "client/client", "client/grpc", "tests/", "bench/"), None,
     "gRPC stays at the edges: state machines see ControlChannel"),
    (r"(grpcpp|grpc)/|.*\.grpc\.pb\.h", None,
     ("server/executor/", "server/replication/", "server/coordinator/coordinator",
      "server/membership", "client/core/", "client/staging/"),
     "a state machine sees ControlChannel, not gRPC"),
    (r"openssl/", ("proto/security/tls_", "proto/security/token.cc", "tests/"), None,
     "only proto/security/ knows OpenSSL"),
    (r"infiniband/|rdma/(rdma_cma|rdma_verbs|fabric|fi_)", ("rdma/", "bench/lane/fabric.", "tests/rdma/fake_gpu_direct.",
     "tests/rdma/fake_verbs/", "tests/rdma/verbs_shim"), None,
     "only rdma/ touches verbs and libfabric"),
    (r"(Eigen|CLI)/", ("worker/", "server/cli/", "proto/base/toml_config.", "proto/base/byte_size.",
     "proto/base/empty_values.", "proto/base/help_formatter.", "proto/base/number_values.",
     "proto/base/usage_error.",
     "tests/", "bench/"), None,
     "Eigen is the trainers', CLI11 the command lines'"),
    (r"(thread|mutex|condition_variable|future|chrono|shared_mutex|pthread\.h|time\.h|ctime"
     r"|sys/(socket|epoll|eventfd|time|mman)\.h|netinet/.*|arpa/.*|unistd\.h"
     r"|absl/time/clock\.h|absl/synchronization/.*|spdlog/.*)$", None, ("shard/",),
     "shard is pure: no threads, sockets, clock or log"),
    (r"(thread|condition_variable|absl/time/clock\.h)$", None,
     ("client/core/", "client/staging/", "server/coordinator/coordinator", "server/membership",
      "server/replication/", "rdma/lane/", "rdma/sim/"),
     "a state machine is given its clock and owns no thread"),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def check_file(path, text):
    """Yields (line, message) of each forbidden include of one file."""
    module = path.split(os.sep)[0]
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        quote, target = match.groups()
        to = target.split("/")[0]
        if to in tree.MODULES and not re.match(r"rdma/(rdma_|fabric|fi_)", target):
            extra = any(target.startswith(p) and module in modules for p, modules in ALSO.items())
            if module in ARROWS and to not in ARROWS[module] and not extra:
                yield line, (f'"{target}": {module} may include only '
                             f'{", ".join(sorted(ARROWS[module]))}')
        elif quote == '"' and ("../" in target or "/" not in target):
            yield line, f'"{target}": includes are rooted at the repository, such as "{module}/..."'
        for pattern, allowed, forbidden, why in HEADERS:
            if not re.match(pattern, target) or any(
                    path.startswith(p) and re.match(user, target) for p, user in USERS.items()):
                continue
            if allowed is not None and not path.startswith(allowed):
                yield line, f"<{target}>: {why}"
            if forbidden is not None and path.startswith(forbidden):
                yield line, f"<{target}>: {why}"


def check(root):
    problems = []
    for path in tree.files(root, suffixes=(".h", ".cc", ".c", ".cu")):
        for line, message in check_file(path, tree.read(root, path)):
            problems.append(f"{path}:{line}: {message}")
    return problems


# (file to plant it in, the include). Each must be found, in that file.
PLANTED = (
    ("proto/wire/routing.h", '#include "rdma/transport.h"'),
    ("rdma/transport.h", '#include "verbena/client.h"'),
    ("shard/engine.h", '#include "rdma/transport.h"'),
    ("shard/engine.h", "#include <thread>"),
    ("shard/engine.h", "#include <sys/socket.h>"),
    ("client/include/verbena/client.h", '#include "server/membership.h"'),
    ("client/include/verbena/client.h", '#include "shard/engine.h"'),
    ("client/core/client_core.h", "#include <grpcpp/grpcpp.h>"),
    ("server/executor/inbox.h", "  #  include <prometheus/counter.h>"),
    ("server/membership.h", '#include "verbena/client.h"'),
    ("server/cli/options.h", '#include "verbena/client.h"'),
    ("server/cli/verbena/token_command.h", '#include "client/core/client_core.h"'),
    ("client/core/client_core.h", "#include <openssl/ssl.h>"),
    ("rdma/lane/worker_lane_impl.h", '#include "rdma/sim/sim_network.h"'),
    ("proto/base/json.h", "#include <nlohmann/json.hpp>"),
    ("shard/cold_store.h", "#include <rocksdb/db.h>"),
    ("proto/wire/routing.h", '#include "../client/client.h"'),
    ("proto/wire/routing.h", '#include "record.h"'),
    ("worker/cuda/kernels.cu", '#include "shard/engine.h"'),
)
# Allowed ones that a careless rule would refuse.
ALLOWED = (
    ("client/core/client_core.h", '#include "shard/codec/codec.h"'),
    ("rdma/memory/device.h", '#include "verbena/memory_kind.h"'),
    ("server/cli/verbena/token_command.h", '#include "verbena/client.h"'),
    ("rdma/transport.h", "#include <rdma/rdma_cma.h>"),
    ("proto/wire/routing.h", "// see #include \"rdma/transport.h\""),
)


def self_test(root):
    failures = []
    for planted, expected in [(p, True) for p in PLANTED] + [(p, False) for p in ALLOWED]:
        path, include = planted
        with tempfile.TemporaryDirectory() as copy:
            target = os.path.join(copy, path)
            os.makedirs(os.path.dirname(target))
            shutil.copy(os.path.join(root, path), target)
            with open(target, "a", encoding="utf-8") as f:
                f.write(include + "\n")
            last = tree.read(copy, path).count("\n")
            found = any(p.startswith(f"{path}:{last}:") for p in check(copy))
        if found != expected:
            failures.append(f"{include!r} planted in {path}: "
                            f"{'not found' if expected else 'refused, though it is allowed'}")
    return failures


def main():
    root = sys.argv[1]
    problems = self_test(root) if "--self-test" in sys.argv[2:] else check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
