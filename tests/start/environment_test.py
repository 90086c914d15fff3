#!/usr/bin/env python3
"""Starts verbenad, verbena-train and verbena in unusual environments, one row each. Each ends in the
right result, or in a message that names the cause, within its deadline.

    environment_test.py BUILD [--only TEXT] [--nightly]

Root only: 77 otherwise. --nightly, or VERBENA_NIGHTLY=1: the rows that only repeat others with other
numbers, too."""
import argparse
import concurrent.futures
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading

import programs
from programs import Environment, Program

TRAIN_SECONDS = 40
NOBODY = 65534

DESCRIPTORS = r"descriptor|[Tt]oo many open files"
WORKS = None  # whatever the environment


def limits(*pairs):
    def set_limits():
        for which, most in pairs:
            resource.setrlimit(which, (most, most))
    return set_limits


def close_standard():
    for fd in range(3):
        os.close(fd)


def shell(script):
    """A mount namespace of its own; `script` runs before the program, which is "$@"."""
    return ["unshare", "--mount", "sh", "-c", script + '; exec "$@"', "sh"]


class Group:
    """A control group with one limit: `controller`'s `v1`, or of the unified hierarchy `v2`."""

    def __init__(self, controller, v1, v2, value):
        for root, name in ((f"/sys/fs/cgroup/{controller}", v1), ("/sys/fs/cgroup", v2)):
            self.path = os.path.join(root, f"verbena-start-{os.getpid()}-{threading.get_ident()}")
            try:
                os.mkdir(self.path)
                with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
                    file.write(str(value))
                return
            except OSError:
                self.close()
        raise NotImplementedError(f"no control group with {v2} can be made here")

    def enter(self):
        with open(self.path + "/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")

    def close(self):
        try:
            os.rmdir(self.path)
        except OSError:
            pass


class Row:
    """`refusal`: text on stderr if a program does not work; WORKS: it must. `options`: of
    verbenad; `says`: a text in its log; `only`: no other program is run."""

    def __init__(self, name, environment, refusal=WORKS, nightly=False, options=(), says="", only=""):
        self.name, self.environment, self.refusal = name, environment, refusal
        self.nightly, self.options, self.says = nightly, options, says
        self.programs = [only] if only else ["verbenad", "verbena-train", "verbena"]


def rows(state):
    """`state`: a folder that every user may write to. An environment is made for each start."""
    base = dict(os.environ)
    yield Row("as usual", Environment)
    yield Row("descriptors 0 to 2 closed", lambda: Environment(before=close_standard))
    for most in (24, 32, 48, 64, 128, 256, 1024):
        yield Row(f"nofile {most}", lambda most=most: Environment(
            before=limits((resource.RLIMIT_NOFILE, most))),
            WORKS if most >= 128 else DESCRIPTORS, nightly=most not in (24, 64, 256))
    for most in (3, 6, 10, 16, 24, 32, 64):
        yield Row(f"pids.max {most}", lambda most=most: in_group(
            Group("pids", "pids.max", "pids.max", most)),
                  r"pids\.max is \d+",
                  nightly=most not in (3, 16, 24))
    for most in (8, 40):
        yield Row(f"RLIMIT_NPROC {most}", lambda most=most: Environment(
            wrap=["prlimit", f"--nproc={most}", *other_user()]),
            r"RLIMIT_NPROC is \d+", nightly=most != 8)
    for gib in (1, 4):
        yield Row(f"RLIMIT_AS {gib} GiB", lambda gib=gib: Environment(
            before=limits((resource.RLIMIT_AS, gib << 30))), nightly=gib != 1)
    yield Row("RLIMIT_FSIZE 4096", lambda: Environment(
        before=limits((resource.RLIMIT_FSIZE, 4096))), r"File too large", nightly=True,
        options=["--state", state + "/fsize"])
    yield Row("memory of a group", lambda: in_group(
        Group("memory", "memory.limit_in_bytes", "memory.max", 400 << 20)),
        says=r"memory limit: 320 MiB \(4/5 of the 400 MiB in /sys/fs/cgroup/", only="verbenad")
    yield Row("no /proc", lambda: Environment(wrap=shell("umount -l /proc")))
    yield Row("no /sys", lambda: Environment(wrap=shell("umount -l /sys")))
    yield Row("read-only file system", lambda: Environment(
        wrap=shell(f"mount -t tmpfs -o ro none {state}")), r"Read-only file system",
        options=["--state", state + "/ro"], only="verbenad")
    yield Row("full file system", lambda: Environment(
        wrap=shell(f"mount -t tmpfs -o size=16k none {state}")), r"full|No space left on device",
        options=["--state", state + "/full"], only="verbenad")
    yield Row("/dev/shm of 64 MiB", lambda: Environment(
        wrap=shell("mount -t tmpfs -o size=64m none /dev/shm")))
    yield Row("no /dev/shm", lambda: Environment(wrap=shell("umount -l /dev/shm")), nightly=True)
    yield Row("no variables", lambda: Environment(variables={}))
    yield Row("proxies", lambda: Environment(variables={**base, **{
        name: "http://127.0.0.1:9" for name in
        ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY")}}))
    for locale in ("tr_TR.UTF-8", "de_DE.UTF-8", "xx_YY", "C"):
        yield Row(f"locale {locale}", lambda locale=locale: Environment(variables={
            **base, "LC_ALL": locale, "LANG": locale, "TZ": ":no/such/zone"}),
            nightly=locale != "xx_YY")
    yield Row("deleted working directory", lambda: Environment(before=deleted_folder))
    yield Row("process 1", lambda: Environment(wrap=["unshare", "--pid", "--fork", "--mount-proc"]))
    yield Row("another user", lambda: Environment(wrap=other_user()),
              options=["--state", state + "/theirs"])
    yield Row("another user's state", lambda: Environment(wrap=other_user()),
              r"Permission denied|belongs to user", options=["--state", state + "/root"],
              only="verbenad")
    yield Row("umask 000", lambda: Environment(before=lambda: os.umask(0)))
    yield Row("umask 777", lambda: Environment(before=lambda: os.umask(0o777)),
              options=["--state", state + "/umask"])
    yield Row("signals blocked", lambda: Environment(before=lambda: signal.pthread_sigmask(
        signal.SIG_BLOCK, range(1, 32))))
    yield Row("stderr is a pipe without a reader", lambda: Environment(stderr=pipe(reader=False)))
    yield Row("stderr is a pipe that is full", lambda: Environment(stderr=pipe(reader=True)))
    yield Row("--pin on one processor", lambda: Environment(
        before=lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])),
        options=["--pin", "--shards", "2"], says=r"--pin: 2 shards on 1 processors",
        only="verbenad")


def other_user():
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def in_group(group):
    environment = Environment(before=group.enter)
    environment.group = group
    return environment


def deleted_folder():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


# Ends of pipes whose reader does not read: open until the test ends.
unread = []


def pipe(reader):
    read, write = os.pipe()
    if reader:
        unread.append(read)
        os.set_blocking(write, False)
        try:
            while True:
                os.write(write, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(write, True)
    else:
        os.close(read)
    return write


class Matrix:
    def __init__(self, build):
        self.programs = programs.Programs(build)
        self.programs.start_cluster()
        self.failures = []
        self.lock = threading.Lock()

    def fail(self, row, program, problem, ended):
        with self.lock:
            self.failures.append(f"{row.name}: {program}: {problem}")
            status = "did not end" if ended.status is None else f"status {ended.status}"
            print(f"FAIL {row.name}: {program}: {problem} ({status})\n{ended.err[-1500:]}",
                  file=sys.stderr, flush=True)

    def judge(self, row, program, ended, works):
        """`works`: why the result is not the right one; empty: it is."""
        if ended.status is None:
            return self.fail(row, program, "does not end", ended)
        if not works:
            return None
        if ended.status < 0 or ended.status > 128 or "terminate called" in ended.err:
            return self.fail(row, program, "is killed by a signal", ended)
        if row.refusal is WORKS:
            return self.fail(row, program, works, ended)
        if not re.search(row.refusal, ended.err):
            return self.fail(row, program, f"does not say {row.refusal}", ended)
        return None

    def run_daemon(self, row, environment):
        p = self.programs
        folder = p.new_folder()
        os.chmod(folder, 0o777)
        daemon = Program(p.daemon_argv(folder, row.options), environment, folder)
        ready = p.wait_ready(daemon, folder)
        if ready is None and daemon.process.poll() is None and row.refusal is not WORKS \
                and re.search(row.refusal, daemon.err()):
            daemon.kill()  # a server that cannot join goes on trying, and logs the reason
            return None
        if ready is None:
            return self.judge(row, "verbenad", daemon.wait(1), "is not ready")
        asked = Program(p.cli_argv(ready["address"]), Environment(), p.new_folder()).wait(20)
        if asked.status != 0:
            self.fail(row, "verbenad", f"is not healthy: {asked.err}", asked)
        # With a wrapper that forks, the program is the last of the group.
        os.killpg(daemon.process.pid, signal.SIGTERM)
        ended = daemon.wait(programs.STOP_SECONDS)
        problem = "" if ended.status in (0, None) else f"ends with status {ended.status}"
        if ended.status == 0 and os.path.exists(os.path.join(folder, "ready")):
            problem = "leaves its ready file"
        self.judge(row, "verbenad", ended, problem)
        if row.says and not re.search(row.says, ended.err):
            self.fail(row, "verbenad", f"does not say {row.says}", ended)
        return None

    def run_train(self, row, environment):
        p = self.programs
        ended = Program(p.train_argv(), environment, p.new_folder()).wait(TRAIN_SECONDS)
        works = "" if ended.status == 0 else "does not train"
        self.judge(row, "verbena-train", ended, works)

    def run_cli(self, row, environment):
        p = self.programs
        ended = Program(p.cli_argv(p.address), environment, p.new_folder()).wait(20)
        self.judge(row, "verbena", ended, "" if ended.status == 0 else "does not answer")

    def run(self, row, program):
        run = {"verbenad": self.run_daemon, "verbena-train": self.run_train,
               "verbena": self.run_cli}[program]
        try:
            environment = row.environment()
        except NotImplementedError as error:
            print(f"skipped: {row.name}: {error}", flush=True)
            return
        try:
            run(row, environment)
        finally:
            if isinstance(environment.stderr, int):
                os.close(environment.stderr)
            if hasattr(environment, "group"):
                environment.group.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--only", default="")
    parser.add_argument("--nightly", action="store_true")
    options = parser.parse_args()
    options.nightly = options.nightly or os.environ.get("VERBENA_NIGHTLY") == "1"
    if os.geteuid() != 0 or subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"],
            check=False).returncode != 0:
        print("skipped: this user may not mount in a namespace of its own")
        return 77
    matrix = Matrix(os.path.abspath(options.build))
    state = os.path.join(matrix.programs.folder, "state")
    os.mkdir(state)
    os.chmod(state, 0o777)
    os.makedirs(state + "/root", 0o700)
    try:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            runs = [pool.submit(matrix.run, row, program)
                    for row in rows(state) if options.only in row.name
                    and (options.nightly or not row.nightly)
                    for program in row.programs]
            for run in runs:
                run.result()
    finally:
        matrix.programs.close()
    print(f"{len(runs)} starts, {len(matrix.failures)} failures")
    return 1 if matrix.failures else 0


if __name__ == "__main__":
    sys.exit(main())
