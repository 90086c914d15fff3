#!/usr/bin/env python3
"""Idle connections take every descriptor that verbenad may have: while they last the control port
serves or /healthz fails, and afterwards the port serves.

    connections_test.py BUILD"""
import os
import resource
import signal
import socket
import sys
import time
import urllib.error
import urllib.request

import programs
from programs import Environment, Program

DESCRIPTORS = 256
CONNECTIONS = 306


def connect(address):
    host, port = address.rsplit(":", 1)
    try:
        return socket.create_connection((host, int(port)), timeout=5)
    except OSError:
        return None  # refused is as good


def health(address):
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 1024)), hard))
    p = programs.Programs(os.path.abspath(sys.argv[1]))
    limit = Environment(before=lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)))
    problems = []
    folder = p.new_folder()
    p.cluster = Program(p.daemon_argv(folder), limit, folder)
    try:
        ready = p.wait_ready(p.cluster, folder)
        assert ready is not None, p.cluster.err()

        def serves():
            return Program(p.cli_argv(ready["address"]), Environment(),
                           p.new_folder()).wait(20).status == 0
        assert serves()
        held = [connect(ready["address"]) for _ in range(CONNECTIONS)]
        # Both are asked more than once: connections may end while the first is asked.
        looks = [serves() or health(ready["metrics"]) == 503 for _ in range(2)]
        if not any(looks):
            problems.append(f"serves nobody, and /healthz says {health(ready['metrics'])}")
        for connection in held:
            if connection is not None:
                connection.close()
        end = time.monotonic() + 30
        while not serves():
            if time.monotonic() > end:
                problems.append("does not serve after the connections have ended")
                break
            time.sleep(0.2)
        if health(ready["metrics"]) != 200:
            problems.append(f"/healthz says {health(ready['metrics'])} afterwards")
        os.kill(p.cluster.process.pid, signal.SIGTERM)
        ended = p.cluster.wait(20)
        if ended.status != 0:
            problems.append(f"ends with status {ended.status}")
        if problems:
            print(ended.err[-3000:])
    finally:
        p.close()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
