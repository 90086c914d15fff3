#!/usr/bin/env python3
"""With umask 000, no file of the programs may be read or written by another user, except those that a
user asked for by name: that may be read, and never written.

    modes_test.py BUILD

Root only (it looks as another user): 77 otherwise."""
import os
import re
import signal
import socket
import stat
import sys

import programs
from programs import Environment, Program

NOBODY = 65534
# Files that others may read.
PUBLIC = {"ready": 0o044, "predictions": 0o044, "audit-log": 0o040}

# Directories that an administrator made, open to others.
GIVEN = ("state", "cold-dir", "checkpoint-dir")


def problems_of_files(folder):
    """The modes of all files below `folder`, and of the directories that were made there."""
    found = []
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            status = os.lstat(path)
            allowed = PUBLIC.get(name, 0)
            if stat.S_ISLNK(status.st_mode):
                found.append(f"{path}: a link")
            elif status.st_mode & 0o077 & ~allowed and name not in GIVEN:
                found.append(f"{path}: mode {stat.S_IMODE(status.st_mode):o}")
            if status.st_uid != os.geteuid():
                found.append(f"{path}: of user {status.st_uid}")
        # Files below a closed directory are closed.
        folders[:] = [name for name in folders
                      if os.lstat(os.path.join(root, name)).st_mode & 0o077]
    return found


def sockets_of(pids):
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                inode = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
            except FileNotFoundError:
                continue
            if inode:
                inodes.add(inode[1])
    return inodes


def listening_unix(pids):
    """Names of the UNIX sockets that these processes listen on."""
    inodes = sockets_of(pids)
    names = []
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            accepts = int(fields[3], 16) & 0x10000
            if accepts and fields[6] in inodes:
                names.append((fields[7] if len(fields) > 7 else "", int(fields[4], 16)))
    return names


def other_user_is_served(name, kind):
    """Whether another user's connection to the abstract socket `name` stays open."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            peer = socket.socket(socket.AF_UNIX, kind)
            peer.settimeout(5)
            peer.connect("\0" + name[1:])
            while peer.recv(4096):
                pass
            os._exit(0)
        except (ConnectionError, PermissionError):
            os._exit(0)
        except TimeoutError:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def problems_of_process(pid):
    found = []
    for name, kind in listening_unix([pid]):
        if not name.startswith("@"):
            found.append(f"listens on the path {name}")
        elif other_user_is_served(name, kind):
            found.append(f"serves another user on {name}")
    # Mapped files are anonymous, or files that others cannot read.
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for path in {line.split(maxsplit=5)[5].strip() for line in file if line.count("/") > 0}:
            if path.startswith("/dev/shm/"):
                found.append(f"maps {path}")
    return found


def files_of_users(folder):
    """The entries of the shared folders for temporary files, without folders of tests."""
    return {entry.path for place in ("/tmp", "/dev/shm", "/var/tmp") if os.path.isdir(place)
            for entry in os.scandir(place)
            if entry.path != folder and not entry.name.startswith("verbena-test-")}


def main():
    if os.geteuid() != 0:
        print("skipped: this user cannot become another one")
        return 77
    p = programs.Programs(os.path.abspath(sys.argv[1]))
    work = os.path.join(p.folder, "work")
    os.mkdir(work, 0o700)
    environment = Environment(before=lambda: os.umask(0))
    problems = []
    try:
        for name in GIVEN:
            os.makedirs(os.path.join(work, name), 0o755)
        options = []
        for option in ("state", "cold-dir", "checkpoint-dir", "audit-log", "operator-token-file"):
            options += [f"--{option}", os.path.join(work, option)]
        options += ["--name", "server", "--checkpoint-every", "1", "--checkpoint-on-exit", "10"]
        before = files_of_users(p.folder)
        outputs = p.new_folder()
        p.cluster = Program(p.daemon_argv(work, options), environment, outputs)
        ready = p.wait_ready(p.cluster, work)
        assert ready is not None, p.cluster.err()
        p.address = ready["address"]
        token = ["--token-file", os.path.join(work, "operator-token-file")]
        problems += problems_of_files(work)
        predictions = os.path.join(work, "predictions")
        trained = Program(p.train_argv([
            *token, "--workers", "2", "--model", "embedding-logistic", "--predictions",
            predictions, "--hot-bytes", "65536", "--job", "modes"]), environment, p.new_folder()).wait(60)
        assert trained.status == 0, trained.err
        problems += problems_of_files(work) + problems_of_process(p.cluster.process.pid)
        for command in (["checkpoint", "save", os.path.join(work, "saved"), "--cluster", p.address,
                         *token],
                        ["checkpoint", "export", os.path.join(work, "saved"), "--to",
                         os.path.join(work, "exported")],
                        ["token", "create", "--role", "job", "--job", "modes", "--cluster",
                         p.address, *token, "--out", os.path.join(work, "job.token")]):
            ended = Program([p.path("verbena"), *command], environment, p.new_folder()).wait(60)
            if ended.status != 0:
                problems.append(f"verbena {' '.join(command)}: {ended.err}")
        os.kill(p.cluster.process.pid, signal.SIGTERM)
        ended = p.cluster.wait(20)
        assert ended.status == 0, ended.err
        problems += problems_of_files(work)
        problems += [f"{path}: was left" for path in files_of_users(p.folder) - before]
    finally:
        p.close()
    for problem in sorted(set(problems)):
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
