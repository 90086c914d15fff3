"""Starts the programs of this project in environments of a test's choice, each with a deadline."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

START_SECONDS = 20
STOP_SECONDS = 10


def eventually(condition, seconds=START_SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Environment:
    """How a program is started. `wrap`: a command that runs it; `before`: runs in the child, between
    fork and exec; `variables`: replaces the environment."""

    def __init__(self, wrap=(), before=None, variables=None, cwd=None, stderr=None, close_fds=True):
        self.wrap = list(wrap)
        self.before = before
        self.variables = variables
        self.cwd = cwd
        self.stderr = stderr
        self.close_fds = close_fds


class Ended:
    """A program that has ended: its status (None: it did not, and was killed) and its output."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


class Program:
    def __init__(self, argv, environment, folder):
        self.out_path = os.path.join(folder, "out")
        self.err_path = os.path.join(folder, "err")
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(
                environment.wrap + argv, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err if environment.stderr is None else environment.stderr,
                env=environment.variables, cwd=environment.cwd, preexec_fn=environment.before,
                start_new_session=True)

    def text(self, path):
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")

    def err(self):
        return self.text(self.err_path)

    def wait(self, seconds):
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            status = None
        return Ended(status, self.text(self.out_path), self.err())

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Programs:
    """The built programs, and a cluster in the test's own environment for those that need one."""

    def __init__(self, build):
        self.build = build
        self.folder = tempfile.mkdtemp(prefix="verbena-start-")
        os.chmod(self.folder, 0o755)
        self.examples = os.path.join(self.folder, "examples.svm")
        with open(self.examples, "w", encoding="ascii") as file:
            for i in range(200):
                file.write(f"{i % 2} {1 + i % 7}:1 {10 + i % 3}:0.5\n")
        self.cluster = None

    def path(self, name):
        return os.path.join(self.build, name)

    def new_folder(self):
        return tempfile.mkdtemp(dir=self.folder)

    def daemon_argv(self, folder, more=()):
        return [self.path("verbenad"), "--coordinator", "--listen", "127.0.0.1:0",
                "--metrics", "127.0.0.1:0", "--ready-file", os.path.join(folder, "ready"), *more]

    def wait_ready(self, program, folder, seconds=START_SECONDS):
        """The ready file's fields; None: the program has ended or is not ready in time."""
        end = time.monotonic() + seconds
        ready = os.path.join(folder, "ready")
        while time.monotonic() < end:
            if os.path.exists(ready) and os.path.getsize(ready) > 0:
                with open(ready, encoding="ascii") as file:
                    return json.load(file)
            if program.process.poll() is not None:
                return None
            time.sleep(0.02)
        return None

    def start_cluster(self):
        folder = self.new_folder()
        self.cluster = Program(self.daemon_argv(folder), Environment(), folder)
        ready = self.wait_ready(self.cluster, folder)
        assert ready is not None, self.cluster.err()
        self.address = ready["address"]

    def train_argv(self, more=()):
        return [self.path("verbena-train"), "--cluster", self.address, "--format", "libsvm",
                "--data", self.examples, "--test", self.examples, "--epochs", "1", "--json", *more]

    def cli_argv(self, address):
        return [self.path("verbena"), "status", "--cluster", address]

    def close(self):
        if self.cluster is not None:
            self.cluster.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
