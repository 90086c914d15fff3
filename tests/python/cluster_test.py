"""local_cluster(): it starts, is used, and leaves nothing."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import verbena


def run(code, **environment):
    """Runs Python code; returns its output. Fails if it fails."""
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120,
                            env={**os.environ, **environment}, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def alive(pid):
    """Whether the process runs: a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_module_prints_versions_and_places():
    def says(*arguments):
        return subprocess.run([sys.executable, "-m", "verbena", *arguments], text=True, capture_output=True,
                              timeout=120, check=True).stdout
    assert says("--version") == f"verbena {verbena.__version__}\n"
    lines = dict(line.split(None, 1) for line in says().splitlines())
    assert lines["verbena"] == verbena.__version__
    assert lines["verbenad"] == verbena.find_verbenad()
    assert os.path.samefile(lines["package"], os.path.dirname(verbena.__file__))
    assert os.path.samefile(lines["library"], verbena._core.library_path())


def test_followers_answer_an_observer():
    with verbena.local_cluster(servers=2, replicas=2, options=("--lease-ms", "1000")) as cluster:
        worker = verbena.connect(cluster, job="trainer")
        table = worker.table("weights", shape=4096, chunk_bytes=1024, rate=1, consistency="async")
        worker.push(table, np.ones(4096, np.float32)).wait()
        observer = verbena.connect(cluster, job="trainer", observer=True)
        watched = observer.open_table("weights")
        assert np.all(observer.pull(watched).wait() == -1)
        assert observer.statistics()["follower_pulls"] == 0
        # Until replicas are followers, and have heard from their primaries.
        for _ in range(600):
            assert np.all(observer.pull(watched, read_from="any", max_staleness=5).wait() == -1)
            if observer.statistics()["follower_pulls"] > 0:
                break
            time.sleep(0.1)
        assert observer.statistics()["follower_pulls"] > 0


def test_a_cluster_with_replicas_survives_a_server():
    with verbena.local_cluster(servers=2, shards=2, replicas=2, options=("--lease-ms", "1000")) as cluster:
        with verbena.connect(cluster, job="survives") as client:
            table = client.table("weights", shape=5, rate=1, consistency="async")
            gradient = client.empty(5)
            gradient[:] = 1
            client.push(table, gradient).wait()
            cluster.servers[0].kill()
            client.push(table, gradient).wait()
            assert client.pull(table).wait().tolist() == [-2] * 5


def test_the_end_of_the_block_stops_the_daemons():
    with verbena.local_cluster(servers=1) as cluster:
        assert str(cluster) == cluster.address
        pids = [cluster.coordinator.pid, cluster.servers[0].pid]
        assert all(alive(pid) for pid in pids)
        assert os.path.exists(os.path.join(cluster.directory, "server-0.log"))
    assert not any(alive(pid) for pid in pids)
    assert not os.path.exists(cluster.directory)
    cluster.stop()


def test_the_end_of_the_interpreter_stops_the_daemons():
    out = run("import verbena\n"
              "cluster = verbena.local_cluster(servers=1)\n"
              "client = verbena.connect(cluster)\n"
              "print(cluster.coordinator.pid, cluster.servers[0].pid, cluster.directory)")
    coordinator, server, directory = out.split()
    assert not alive(coordinator) and not alive(server) and not os.path.exists(directory)


def test_the_end_of_the_interpreter_stops_a_cluster_that_was_dropped():
    out = run("import verbena\n"
              "client = verbena.connect(verbena.local_cluster(servers=1))\n"
              "cluster, = verbena._cluster._running\n"
              "print(cluster.coordinator.pid, cluster.servers[0].pid)\n"
              "del cluster")
    assert not any(alive(pid) for pid in out.split())


def test_daemons_end_after_their_parent_was_killed():
    code = ("import threading, time, verbena\n"
            "clusters = []\n"
            "thread = threading.Thread(target=lambda: clusters.append(verbena.local_cluster(servers=1)))\n"
            "thread.start(); thread.join()\n"
            "cluster, = clusters\n"
            "with verbena.connect(cluster) as client:\n"  # the end of the thread ends no daemon
            "    client.table('t', shape=1)\n"
            "print(cluster.coordinator.pid, cluster.servers[0].pid, cluster.directory, flush=True)\n"
            "time.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    *pids, directory = parent.stdout.readline().split()
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        end = time.monotonic() + 60
        while any(alive(pid) for pid in pids):
            assert time.monotonic() < end, "a daemon goes on"
            time.sleep(0.05)
    finally:
        for pid in filter(alive, pids):
            os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(directory)


def test_an_interrupted_stop_is_finished_by_the_next():
    cluster = verbena.local_cluster(servers=1)
    pids = [cluster.coordinator.pid, cluster.servers[0].pid]
    os.kill(pids[1], signal.SIGSTOP)  # it does not end on request
    interrupt = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    interrupt.join()
    os.kill(pids[1], signal.SIGCONT)
    cluster.stop()
    assert not any(alive(pid) for pid in pids)


def test_a_daemon_that_does_not_start_is_named_with_its_log():
    with pytest.raises(RuntimeError, match="(?s)verbenad coordinator ended with status.*colour"):
        verbena.local_cluster(options=("--colour", "red"))


def test_a_missing_program_is_named_with_the_places():
    out = run("import os, verbena\n"
              "verbena._cluster._core.library_path = lambda: '/nowhere/lib/libverbena.so'\n"
              "try: verbena.find_verbenad()\n"
              "except FileNotFoundError as error: print(error)",
              VERBENA_VERBENAD="", PATH="/nowhere")
    assert "verbenad is not in" in out and "near /nowhere/lib" in out and "set VERBENA_VERBENAD" in out


def test_the_variable_comes_before_all_places_and_has_no_fallback(monkeypatch):
    monkeypatch.setenv("VERBENA_VERBENAD", "/bin/false")
    assert verbena.find_verbenad() == "/bin/false"
    monkeypatch.setenv("VERBENA_VERBENAD", "/nowhere/verbenad")
    with pytest.raises(FileNotFoundError, match="VERBENA_VERBENAD is /nowhere/verbenad, which is not a program"):
        verbena.local_cluster()


def test_verbenad_is_found_near_the_library():
    out = run("import verbena; print(verbena.find_verbenad())", VERBENA_VERBENAD="")
    assert os.path.basename(out.strip()) == "verbenad"


def test_servers_share_the_memory():
    def limit_of(server):
        with open(f"/proc/{server.pid}/cmdline", encoding="utf-8") as file:
            words = file.read().split("\0")
        return int(words[words.index("--memory-limit") + 1])

    with verbena.local_cluster(servers=1) as one, verbena.local_cluster(servers=3) as three:
        whole = limit_of(one.servers[0])
        assert [limit_of(server) for server in three.servers] == [whole // 3] * 3
    options = ("--memory-limit", str(256 << 20))
    with verbena.local_cluster(servers=2, server_options=options) as given:
        assert [limit_of(server) for server in given.servers] == [256 << 20] * 2
