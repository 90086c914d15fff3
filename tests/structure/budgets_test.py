#!/usr/bin/env python3
"""Fails when something that a peer can drive has no row in "Budgets of peers" of docs/security.md.

    budgets_test.py ROOT              checks the tree
    budgets_test.py ROOT --self-test  takes rows, names and log wrappers away, and expects each missed

Checked: every call of proto/verbena/v1/*.proto and every HTTP path has a row in the table of calls, whose
budgets are rows of the table of budgets; an audited call has the audit's budget; every bound names a
constant or an option that exists, a metric that exists, and a test that exists; every budget that is counted
(server/access/budget.h) has a row; every log statement of the daemon is behind a PeerLog, or has a
comment that begins "Once" with the reason for one line and no more; libraries have no log statements of their own.
"""
import re
import sys

import tree

DOC = "docs/security.md"
LIBRARIES = ("proto/", "rdma/", "shard/")
# The programs of the command line write to their own user.
NOT_THE_DAEMON = ("server/cli/", "server/log/", "server/main.cc", "client/")
# Anything that gRPC serves by itself.
OWN_CALLS = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
LOG = re.compile(r"\bspdlog::(?:trace|debug|info|warn|error|critical|log)\(|std::(?:cerr|cout|clog)\b|"
                 r"\b(?:std::)?(?:fprintf|vfprintf|fputs|puts|printf|perror|syslog)\(")
BEHIND = re.compile(r"\b(?:Bounded|PeerLog|\w+_)\(\[.*\]\(const std::string& \w+\)", re.DOTALL)
BEHIND_LAMBDA = re.compile(r"\b(?:Bounded|PeerLog)\(\[.*\]\(const std::string& \w+\) \{(?:\s*//.*)?$",
                           re.MULTILINE)
ONCE = re.compile(r"^\s*// (?:Once\b|Bounded by .*: budgets? [a-z, -]+\.$)", re.MULTILINE)


def table(text, heading):
    """The rows of the first table below a heading: lists of cells."""
    at = text.find(f"\n{heading}\n")
    if at < 0:
        return []
    rows = []
    for line in text[at + len(heading) + 2:].split("\n"):
        if line.startswith("#"):
            break
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
        elif rows:
            break
    return rows[2:]


def sources(root, folders):
    return {path: tree.read(root, path)
            for path in tree.files(root, folders, (".cc", ".h", ".py", ".sh", ".proto"))}


class Tree:
    def __init__(self, root):
        self.doc = tree.read(root, DOC)
        self.code = sources(root, ("proto", "rdma", "shard", "server", "client"))
        self.tests = sources(root, ("tests",))


def calls(code):
    """Calls of our services, with whether they are audited."""
    found = {}
    for path, text in code.items():
        if not path.startswith("proto/verbena/v1/") or not path.endswith(".proto"):
            continue
        for service in re.finditer(r"^service (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            for call in re.finditer(r"^  rpc (\w+)\(.*?(?=^  rpc |\Z)", service.group(2),
                                    re.MULTILINE | re.DOTALL):
                found[f"{service.group(1)}.{call.group(1)}"] = "audited: true" in call.group()
    return found


def paths(code):
    return set(re.findall(r'"(/\w+)"', code["server/metrics/http_server.cc"]))


def log_problems(code):
    for path, text in code.items():
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not path.endswith((".cc", ".h")) or not LOG.search(line.split("//")[0]):
                continue
            if path.startswith(NOT_THE_DAEMON):
                continue
            if path.startswith(LIBRARIES):
                if "snprintf" not in line:
                    yield f"{path}:{number}: a library has no log of its own: take a function"
                continue
            # The statement and the comments above it: back to the end of the statement before.
            first = number - 1
            while first > 0 and number - first < 8 and not re.search(r"[;{}]\s*(//.*)?$", lines[first - 1]):
                first -= 1
            statement = "\n".join(lines[first:number])
            # A lambda's body is a line of its own.
            before = "\n".join(lines[max(first - 1, 0):number])
            if ONCE.search(statement) or BEHIND.search(statement) or BEHIND_LAMBDA.search(before):
                continue
            yield (f"{path}:{number}: a log line that peers may cause goes through a PeerLog (Bounded()); "
                   "one a process life, or an operator's act, has a comment \"// Once ...\" above it")


def problems(t):
    budgets = table(t.doc, "### Bounds")
    if len(budgets) < 20:
        yield f"{DOC}: no table below \"### Bounds\""
        return
    keys = [row[0].strip("`") for row in budgets]
    for key in {key for key in keys if keys.count(key) > 1}:
        yield f"{DOC}: two rows with the key {key}"
    everything = "\n".join(t.code.values())
    metrics = "\n".join(text for path, text in t.code.items() if path.startswith("server/metrics/"))
    cases = "\n".join(re.findall(r'TEST_CASE\(\s*"((?:[^"\\]|\\.)*)"', "\n".join(t.tests.values())))
    for row in budgets:
        where = f"{DOC}: row {row[0]}"
        if len(row) != 8:
            yield f"{where}: {len(row)} cells instead of 8"
            continue
        for name in re.findall(r"`(k[A-Z]\w+|--[a-z-]+|GRPC_\w+|[a-z]+(?:_[a-z]+)+)`", row[4]):
            if name not in everything:
                yield f"{where}: there is no {name}"
        if not re.search(r"`(k[A-Z]\w+|--[a-z-]+|GRPC_\w+|[a-z]+(_[a-z]+)+|verbena limits[^`]*)`", row[4]):
            yield f"{where}: names no option and no constant"
        for name in re.findall(r"`(verbena_\w+)", row[6]):
            # As a whole: a part of another metric's name is none.
            if not re.search(rf"\b{name}\b", metrics):
                yield f"{where}: there is no metric {name}"
        if not re.search(r"`verbena_\w+|^none: ", row[6]):
            yield f"{where}: names no metric, nor why there is none"
        tests = re.findall(r"`(\w+)`: ([^;]+)", row[7])
        if not tests:
            yield f"{where}: no test"
        for program, title in tests:
            if program == "hostile":
                if not any(f'"{action.strip()}"' in t.tests["tests/faults/hostile_peer.cc"]
                           for action in title.split(",")):
                    yield f"{where}: hostile has no action {title}"
            elif title.strip() not in cases:
                yield f"{where}: there is no test case \"{title.strip()}\""
    counted = re.findall(r'"([a-z-]+)"', t.code["server/access/budget.h"].split("kBudgetNames")[1])
    for name in counted:
        if name not in keys:
            yield f"{DOC}: no row with the key {name} (server/access/budget.h)"
    named = {}
    for row in table(t.doc, "### Calls and endpoints"):
        for name in re.findall(r"`([^`]+)`", row[0]):
            named[name] = re.findall(r"`([^`]+)`", row[1])
    wanted = calls(t.code)
    if len(wanted) < 20:
        yield "proto/verbena/v1: the services were not found"
    for name in sorted(set(wanted) | paths(t.code) | set(OWN_CALLS)):
        if name not in named:
            yield f"{DOC}: \"Calls and endpoints\" has no row for {name}"
    for name, of_call in named.items():
        if name not in wanted and name not in paths(t.code) and name not in OWN_CALLS:
            yield f"{DOC}: there is no call {name}"
        for key in of_call:
            if key not in keys:
                yield f"{DOC}: {name}: no budget {key}"
        if wanted.get(name) != ("audited-calls" in of_call) and name in wanted:
            yield f"{DOC}: {name}: is audited, or not, in the .proto alone"
        if name in wanted and not any(key.endswith("-queue") for key in of_call):
            yield f"{DOC}: {name}: names no queue"
        if name in wanted and not {"request", "incomplete-request"} <= set(of_call):
            yield f"{DOC}: {name}: names no bound of its request"
    yield from log_problems(t.code)


def self_test(root):
    failures = []

    def expect(what, change):
        t = Tree(root)
        before = len(list(problems(t)))
        change(t)
        if len(list(problems(t))) <= before:
            failures.append(f"not missed: {what}")

    def edit(path, old, new):
        def change(t):
            text = t.code[path]
            assert old in text, (path, old)
            t.code[path] = text.replace(old, new, 1)
        return change

    def edit_doc(pattern, new):
        def change(t):
            t.doc, count = re.subn(pattern, new, t.doc, count=1, flags=re.MULTILINE)
            assert count == 1, pattern
        return change

    t = Tree(root)
    for row in table(t.doc, "### Bounds"):
        key = row[0].strip("`")
        used = any(f"`{key}`" in line and not line.startswith(f"| `{key}`")
                   for line in t.doc.split("\n") if line.startswith("| `"))
        if used or f'"{key}"' in t.code["server/access/budget.h"]:
            expect(f"the row {key}", edit_doc(rf"^\| `{key}` .*\n", ""))
    for name in list(calls(t.code))[::5]:
        expect(f"the call {name}", edit_doc(re.escape(f"`{name}`"), "`x.y`"))
    expect("a new call", edit("proto/verbena/v1/shard.proto", "  rpc OpenLane(",
                              "  rpc Fresh(A) returns (B) {}\n  rpc OpenLane("))
    expect("a new path", edit("server/metrics/http_server.cc", '"/healthz"', '"/healthz" + "/debug"'))
    expect("a new budget", edit("server/access/budget.h", '"http-reply"', '"http-reply", "fresh-one"'))
    expect("a log line", edit("server/control/shard_service.cc", "  lane_log_.Write(",
                              "  spdlog::info(\"x\");\n  lane_log_.Write("))
    expect("a library's log line", edit("rdma/ofi/ofi_endpoint.cc", "namespace {",
                                        "namespace {\nvoid F() { std::fprintf(stderr, \"x\"); }"))
    expect("a part of a metric's name", edit_doc(r"`verbena_shard_lanes`", "`verbena_shard_lanes_open`"))
    expect("a test case", edit_doc(r"`daemon_hostile_test`: \w+", "`daemon_hostile_test`: nothing like it"))
    return failures


def main():
    root = sys.argv[1]
    found = self_test(root) if "--self-test" in sys.argv[2:] else list(problems(Tree(root)))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
