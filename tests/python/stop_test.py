"""StopSignals: SIGTERM ends a loop after a step, and the worker leaves its job; a second one at once."""
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import verbena

# Its lines: the step that it has begun, then "left" when its client is closed.
WORKER = """
import sys
import numpy as np
import verbena
stop = verbena.StopSignals()
with stop, verbena.connect(sys.argv[1], job=sys.argv[2], expected_workers=2, max_workers=2,
                           timeout=60) as client:
    table = client.table(sys.argv[2], shape=8, rate=1)
    gradient, parameters = np.ones(8, np.float32), np.zeros(8, np.float32)
    step = 0
    while not stop.requested:
        handle = client.push_pull(table, gradient, parameters)
        print("step", step, flush=True)
        handle.wait()
        step += 1
print("left", step, parameters[0], flush=True)
sys.exit(stop.exit_status)
"""


@pytest.fixture
def worker(cluster):
    """A worker in another process, with this job of two."""
    started = []

    def start(job):
        started.append(subprocess.Popen([sys.executable, "-c", WORKER, cluster.address, job],
                                        stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_sigterm_ends_a_worker_after_its_step(cluster, worker):
    process = worker("drains")
    with verbena.connect(cluster, job="drains", expected_workers=2, max_workers=2, timeout=60) as client:
        table = client.table("drains", shape=8, rate=1)
        ones, parameters = np.ones(8, np.float32), np.zeros(8, np.float32)
        assert process.stdout.readline() == "step 0\n"
        client.push_pull(table, ones, parameters).wait()
        assert process.stdout.readline() == "step 1\n"  # it waits for this worker
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        client.push_pull(table, ones, parameters).wait()
        assert process.stdout.readline() == "left 2 -2.0\n"
        assert process.wait(30) == 128 + signal.SIGTERM
        # Long before the lease of the other one, 10 s, would have ended.
        client.push_pull(table, ones, parameters).wait(timeout=5)
        assert parameters[0] == -3


def test_a_second_sigterm_ends_it_at_once(worker):
    process = worker("twice")  # the other worker never comes
    assert process.stdout.readline() == "step 0\n"
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM


def test_a_second_ctrl_c_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with verbena.StopSignals() as stop:
        assert (stop.requested, stop.signal, stop.exit_status) == (False, None, 0)
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.requested, stop.signal, stop.exit_status) == (True, signal.SIGINT, 130)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_only_named_signals_and_only_within():
    before = signal.getsignal(signal.SIGTERM)
    with verbena.StopSignals(signals=[signal.SIGTERM]) as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_is_refused():
    refused = []

    def enter():
        try:
            verbena.StopSignals().__enter__()
        except ValueError as error:
            refused.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert refused and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
