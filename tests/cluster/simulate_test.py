#!/usr/bin/env python3
"""A small cluster on virtual time, by the benchmark's own simulator: it converges after each failure.

    simulate_test.py COORDINATOR_BENCH
"""
import json
import os
import re
import subprocess
import sys
import tempfile

LEASE_MS = 1000.0
TAKEOVER_MS = 700.0
FAILURES = ("a server dies", "a rack dies (1 servers)", "the coordinator dies")


def run(bench, *options):
    command = [bench, "--simulate", "--workers", "20", "--servers", "5", "--zones", "5", "--partitions", "16",
               "--tables", "2", "--lease-ms", f"{LEASE_MS:.0f}", "--takeover-ms", f"{TAKEOVER_MS:.0f}",
               "--latency-us", "100", "--in-memory", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def failures(output):
    """{failure: (converged, {part: ms})}"""
    found = {}
    for name, ms, rest in re.findall(r"^  (.+): converged after ([\d.]+) ms = ([^;\n]+)", output, re.MULTILINE):
        found[name] = float(ms), {part: float(value) for part, value in re.findall(r"([a-z -]+) ([\d.]+)(?: \+ |$)", rest)}
    return found


def check(condition, message, output):
    if not condition:
        sys.exit(f"{message}:\n{output}")


def check_failures(output):
    found = failures(output)
    check(tuple(found) == FAILURES, f"expected the failures {FAILURES}, got {tuple(found)}", output)
    for name, (converged, parts) in found.items():
        check(abs(sum(parts.values()) - converged) < 0.5, f"the parts of '{name}' are not its time", output)
    for name in FAILURES[:2]:
        converged, parts = found[name]
        check(set(parts) == {"detection", "promotion", "view spread", "catch-up", "last view"},
              f"parts of '{name}'", output)
        # A follower asks after a lease without its primary, and looks now and then.
        check(0.8 * LEASE_MS <= parts["detection"] <= 2 * LEASE_MS, f"detection of '{name}'", output)
        check(converged < 5 * LEASE_MS, f"'{name}' takes several leases", output)
    check(found[FAILURES[2]][1]["takeover"] == TAKEOVER_MS, "the takeover is not the one that was given", output)
    check(all(int(n) > 0 for n in re.findall(r"(\d+) partitions have another primary", output)),
          "a death moved no partition", output)


def main():
    bench = sys.argv[1]
    measured = run(bench)
    check_failures(measured)
    costs = re.search(r"--costs ([\d.,]+)", measured)
    check(costs is not None, "the costs are not printed", measured)
    given = ("--costs", costs.group(1))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        first = run(bench, *given, "--json", path)
        with open(path, encoding="utf-8") as rows:
            rows = json.load(rows)
    check(len(rows) == len(FAILURES), f"rows of the report: {rows}", first)
    again = run(bench, *given)
    check(first == again, f"the same seed and costs gave other output, first\n{first}\nthen", again)
    check(failures(first) != failures(run(bench, *given, "--seed", "2")), "the seed changes nothing", first)
    # Costs count: a coordinator that needs 20 ms for each reply takes longer to spread a view.
    values = costs.group(1).split(",")
    values[2] = "20000"
    slow = run(bench, "--costs", ",".join(values))
    spread = [failures(o)[FAILURES[0]][1]["view spread"] for o in (first, slow)]
    check(spread[1] > spread[0] + 20 * 20, f"slow replies do not slow the spread of views: {spread} ms", slow)


if __name__ == "__main__":
    main()
