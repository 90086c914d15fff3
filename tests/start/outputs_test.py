#!/usr/bin/env python3
"""An output of the programs is written to and keeps its kind: a device,
a pipe, a link, stdout. A ready file that an earlier process left goes at the start.

    outputs_test.py BUILD"""
import os
import stat
import sys
import threading

import programs
from programs import Environment, Program

EXAMPLES = 200


def kind(path):
    return stat.S_IFMT(os.lstat(path).st_mode)


def check_predictions(p, problems):
    folder = p.new_folder()
    path = {name: os.path.join(folder, name) for name in ("null", "link", "target", "pipe")}
    outputs = ["link", "pipe", "/dev/stdout"]
    if os.geteuid() == 0:
        os.mknod(path["null"], 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        outputs.append("null")
    os.symlink("target", path["link"])
    os.mkfifo(path["pipe"])
    kinds = {name: kind(path[name]) for name in outputs if name in path}
    piped = []
    reader = threading.Thread(target=lambda: piped.extend(open(path["pipe"], encoding="ascii")))
    reader.start()
    for name in outputs:
        argv = p.train_argv(["--predictions", path.get(name, name)])
        ended = Program(argv, Environment(), p.new_folder()).wait(40)
        if ended.status != 0:
            problems.append(f"--predictions {name}: {ended.err}")
        if name in kinds and kind(path[name]) != kinds[name]:
            problems.append(f"--predictions {name}: it is another kind of file now")
        if name == "/dev/stdout" and len(ended.out.splitlines()) != EXAMPLES + 1:
            problems.append(f"--predictions /dev/stdout: printed {ended.out[:200]}")
    if reader.is_alive() and not piped:
        with open(path["pipe"], "w", encoding="ascii"):  # so that the reader ends
            pass
    reader.join()
    if len(piped) != EXAMPLES:
        problems.append(f"--predictions PIPE: {len(piped)} lines")
    if not os.path.exists(path["target"]):
        problems.append("--predictions LINK: its target is not written")


def check_ready_file(p, problems):
    folder = p.new_folder()
    ready = os.path.join(folder, "ready")
    os.symlink("target", ready)
    daemon = Program(p.daemon_argv(folder), Environment(), folder)
    if p.wait_ready(daemon, folder) is None:
        problems.append(f"--ready-file LINK: {daemon.err()}")
    daemon.kill()
    if kind(ready) != stat.S_IFLNK:
        problems.append("--ready-file LINK: the link was replaced")
    # It cannot join: nobody listens there.
    argv = [p.path("verbenad"), "--join", "127.0.0.1:9", "--listen", "127.0.0.1:0",
            "--ready-file", ready]
    waiting = Program(argv, Environment(), p.new_folder())
    if not programs.eventually(lambda: not os.path.exists(ready)):
        problems.append("the ready file of an earlier process stays")
    waiting.kill()
    if os.geteuid() != 0:
        return
    device = os.path.join(p.new_folder(), "null")
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    argv = [p.path("verbenad"), "--coordinator", "--listen", "127.0.0.1:0", "--ready-file", device]
    daemon = Program(argv, Environment(), p.new_folder())
    if not programs.eventually(lambda: " ready\n" in daemon.err()):
        problems.append(f"--ready-file DEVICE: {daemon.err()}")
    daemon.process.terminate()
    if daemon.wait(programs.STOP_SECONDS).status != 0 or kind(device) != stat.S_IFCHR:
        problems.append("--ready-file DEVICE: it is another kind of file now")


def main():
    p = programs.Programs(os.path.abspath(sys.argv[1]))
    problems = []
    try:
        p.start_cluster()
        check_predictions(p, problems)
        check_ready_file(p, problems)
    finally:
        p.close()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
