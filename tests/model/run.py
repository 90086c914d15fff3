#!/usr/bin/env python3
"""Verifies the model of the control protocol (cluster.pml) with spin, and that spin finds each planted fault.

    run.py                   the runs for every change: parts of the model, then all planted faults
    run.py --nightly         larger bounds, and all parts of the model together
    run.py --only NAME...    these rows alone
    run.py --trail NAME      the steps of the row's counterexample

Each row is a search of the whole state space; its seconds are processor time. The run fails when a row without a fault has a
counterexample or is not complete, or when that of a planted fault has none, or one of another claim. Exit status 77:
spin or a C compiler is missing.
"""
import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "cluster.pml")
# Bounds of a row: switches of cluster.pml.
LEASES = "ONE_STORE WINDOW=3 W=2"
COORDINATORS = "NO_LEASES WINDOW=3 W=1"
PROGRESS = "ONE_STORE PROGRESS WINDOW=3 W=2"
MIGRATION = "ONE_STORE MIGRATION WINDOW=3 W=1"
TWO = "P=2 ONE_STORE NO_LEASES WINDOW=2 W=1"
TWO_WITH_LEASES = "P=2 ONE_STORE WINDOW=2 MOST_CHANGES=2 W=1 FAULTS=1"

CORRECT = {
    "leases": LEASES,
    "coordinators": COORDINATORS,
    "migration": MIGRATION,
    "progress": PROGRESS,
    "progress, all parts": "P=2 PROGRESS WINDOW=3 W=1",
    "two partitions": TWO,
    "two partitions, leases": TWO_WITH_LEASES,
}
NIGHTLY = {
    "leases, any clocks": "ONE_STORE WINDOW=3 W=1 ANY_CLOCKS",
    "leases, 0.8": "ONE_STORE WINDOW=2 W=1 FAULTS=1 LEASE=5 LEASE_READ=4 SLOW=5",
    "leases and coordinators": "WINDOW=3 W=1 REFUSED_AT_ONCE",
    "one of any number of partitions": "WINDOW=3 W=1 REFUSED_AT_ONCE OTHERS",
    "two partitions, coordinators": "P=2 NO_LEASES WINDOW=2 W=1",
}
# Planted faults: bounds, and the claims of which one is to be false.
FAULTS = {
    "two_leaders_write": (COORDINATORS, "terms_grow one_acknowledges nothing_lost reads_newest"),
    "lease_without_margin": (LEASES, "one_reads reads_newest"),
    "old_place_answers": (LEASES, "one_reads reads_newest"),
    "forgets_given_lease": (LEASES, "one_reads reads_newest"),
    "admitting_without_lease": ("ONE_STORE WINDOW=3 W=1", "one_reads reads_newest"),
    "admitted_while_waiting": ("ONE_STORE WINDOW=5 W=1 HEARD_TIMES", "one_reads reads_newest"),
    "learner_promoted_before_admitted": (LEASES, "only_admitted"),
    "admitted_before_complete": (LEASES, "nothing_lost one_acknowledges reads_newest"),
    "acknowledges_before_follower": (LEASES, "nothing_lost one_acknowledges reads_newest"),
    "replica_ignores_epoch": (LEASES, "one_acknowledges reads_newest nothing_lost"),
    "sealed_primary_answers": (MIGRATION, "one_reads one_acknowledges reads_newest"),
    "hand_over_unsealed": (MIGRATION, "one_reads one_acknowledges reads_newest"),
    "renews_all_partitions": ("P=2 ONE_STORE WINDOW=3 W=1 FAULTS=0", "one_reads reads_newest"),
    "replaced_for_one_partition": (TWO, "nothing_lost"),
    "never_promotes": (PROGRESS, "ends_in_time"),
    "never_sends_again": (PROGRESS, "ends_in_time"),
}


def options(switches):
    return ["-D" + s for s in switches.split()]


def processor_time():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Row:
    def __init__(self, name, switches):
        self.name, self.switches = name, switches
        self.states = self.seconds = self.mib = 0
        self.claim, self.complete, self.output = "", False, ""

    def run(self, planted=False, nightly=False, trail=False):
        with tempfile.TemporaryDirectory() as folder:
            def call(*command, check=True):
                done = subprocess.run(command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT)
                if check and done.returncode != 0:
                    sys.exit(f"{self.name}: {' '.join(command)}:\n{done.stdout}")
                return done.stdout

            out = call("spin", "-a", *options(self.switches), MODEL)
            if not os.path.exists(os.path.join(folder, "pan.c")):
                sys.exit(f"{self.name}: spin -a:\n{out}")
            progress = "PROGRESS" in self.switches.split()
            kind = ["-DNP"] if progress else ["-DSAFETY"]
            # A planted fault is found soon: compiling is the longer part. -DCOLLAPSE compresses states, and loses none.
            call("cc", "-O0" if planted else "-O1", "-w", "-DNOFAIR" if progress else "-DNOCLAIM", "-DNOREDUCE",
                 *(["-DCOLLAPSE"] if nightly else []), "-DMEMLIM=200000", *kind, "-o", "pan", "pan.c")
            began = processor_time()
            # -E: the bound of configurations may end a run of the model. -n: no list of unreached lines.
            self.output = call("./pan", "-n", "-w24", "-m2000000", *(["-l"] if progress else ["-E"]), check=False)
            self.seconds = processor_time() - began
            if trail:
                print(call("spin", "-t", *options(self.switches), "-k", "cluster.pml.trail", MODEL, check=False))
        found = re.search(r"pan:\d+: (?:assertion violated (\w+)|(non-progress cycle|invalid end state|.*))",
                          self.output)
        if found:
            self.claim = found.group(1) or found.group(2)
        states = re.search(r"(\S+) states, stored", self.output)
        memory = re.search(r"([\d.]+)\s+total actual memory usage", self.output)
        self.states = int(float(states.group(1))) if states else 0
        self.mib = float(memory.group(1)) if memory else 0
        self.complete = "Search not completed" not in self.output and "max search depth" not in self.output \
            and "errors: 0" in self.output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nightly", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--trail", metavar="NAME")
    args = parser.parse_args()
    for program in ("spin", "cc"):
        if shutil.which(program) is None:
            print(f"skipped: {program} is missing")
            return 77
    rows = dict(CORRECT)
    if args.nightly:
        rows.update(NIGHTLY)
    rows.update({name: switches + " " + name.upper() for name, (switches, _) in FAULTS.items()})
    only = args.only or ([args.trail] if args.trail else list(rows))
    unknown = [name for name in only if name not in rows and name not in NIGHTLY]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(list(rows) + list(NIGHTLY))}")
    print(f"{'claim or planted fault':<34}{'states':>12}{'cpu s':>8}{'MiB':>8}  verdict")
    wrong = []
    for name in only:
        row = Row(name, rows.get(name) or NIGHTLY[name])
        row.run(planted=name in FAULTS, nightly=name in NIGHTLY, trail=bool(args.trail))
        if name in FAULTS:
            right = row.claim in FAULTS[name][1].split()
            verdict = f"found: {row.claim} is false" if right else f"NOT FOUND ({row.claim or 'no counterexample'})"
        else:
            right = not row.claim and row.complete
            verdict = "holds" if right else f"FAILS: {row.claim or 'the search is not complete'}"
        print(f"{name:<34}{row.states:>12,}{row.seconds:>8.1f}{row.mib:>8.0f}  {verdict}", flush=True)
        if not right:
            wrong.append(name)
            print(row.output, flush=True)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"processor time {processor_time():.0f} s with compilation, largest process {largest / 1024:.0f} MiB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
