"""Ctrl-C, forks, the end of the interpreter, two clients: each in a process of its own."""
import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
import verbena
client = verbena.connect(sys.argv[1], job=f"processes-{os.getpid()}", expected_workers=2, rank=0)
table = client.table(f"open-{os.getpid()}", shape=1000, rate=1)

def open_step():
    # It waits for a second worker, which never joins.
    return client.push_pull(table, np.ones(1000, np.float32), np.zeros(1000, np.float32))

def waits_forever():
    while True:
        try:
            open_step().wait()
        except verbena.Error:
            pass
"""


@pytest.fixture
def run(cluster):
    """Runs code in another process; returns its output. Nothing else may be in standard error."""
    def finished(code, prelude=PRELUDE):
        result = subprocess.run([sys.executable, "-c", prelude + code, cluster.address], text=True,
                                capture_output=True, timeout=60, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    return finished


# Sends Ctrl-C to its process when the main thread is in a function of this name.
INTERRUPT = """
import os, signal, sys, threading
def interrupt_in(name):
    def send():
        while sys._current_frames()[threading.main_thread().ident].f_code.co_name != name:
            pass
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
"""


@pytest.mark.parametrize("function, wait", [
    ("wait_here", "wait_here()"),
    ("wait_here", "wait_here(timeout=1000)"),
    ("select", "asyncio.run(asyncio.wait_for(handle, 1000))"),
    ("wait", "handle.get_future().result()"),
])
def test_ctrl_c_ends_a_wait(run, function, wait):
    assert run(INTERRUPT + f"""
import asyncio
handle = open_step()
def wait_here(timeout=None):
    handle.wait(timeout)
try:
    interrupt_in("{function}")
    {wait}
except KeyboardInterrupt:
    print("interrupted")
""") == "interrupted\n"


def test_ctrl_c_ends_connecting(run):
    assert run(INTERRUPT + """
import socket
import verbena
silent = socket.create_server(("127.0.0.1", 0))
try:
    interrupt_in("__init__")
    verbena.connect("127.0.0.1:%d" % silent.getsockname()[1], timeout=1000)
except KeyboardInterrupt:
    print("interrupted")
""", prelude="") == "interrupted\n"


@pytest.mark.parametrize("code", [
    "handle = open_step()",
    "handle = open_step(); handle.add_done_callback(print)",
    "future = open_step().get_future()",
    "threading.Thread(target=waits_forever, daemon=True).start()",
    "handle = open_step(); handle.cancel(); del client, table",
    "client.push(table, np.ones(1000, np.float32)); client.close()",
    "rows = client.table(f\"rows-{os.getpid()}\", dim=4, consistency=\"async\")\n"
    "client.assign_rows(rows, range(10**5), np.zeros((10**5, 4), np.float32)).wait()\n"
    "scan = client.scan(rows); next(scan)",
])
def test_the_end_of_the_interpreter_with_operations_in_flight(run, code):
    out = run(code + "\nprint('the end')")
    assert out.startswith("the end\n")


def test_a_fork_is_refused_by_name_and_does_not_disturb_the_parent(run):
    out = run("""
array = client.empty(10)
gradient = np.ones(1000, np.float32)
handle = open_step()
pid = os.fork()
if pid == 0:
    try:
        client.push(table, gradient)
    except verbena.FailedPreconditionError as error:
        print("child:", "is a fork" in str(error), flush=True)
    try:
        verbena.connect(sys.argv[1])
    except verbena.FailedPreconditionError as error:
        print("child:", "is a fork" in str(error), flush=True)
    try:
        handle.wait()
    except verbena.FailedPreconditionError as error:
        print("child:", "is a fork" in str(error), flush=True)
    del array, handle, client, table
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
two = verbena.connect(sys.argv[1], job=f"processes-{os.getpid()}", expected_workers=2, rank=1)
two.end_step(two.open_table(table.name)).wait()
print(handle.wait()[0])
""")
    assert out == "child: True\n" * 3 + "-0.5\n"


def test_a_fork_before_connecting_may_connect(run):
    out = run("""
import os, sys
import verbena
pid = os.fork()
with verbena.connect(sys.argv[1], job=f"forked-{os.getpid()}") as client:
    table = client.table(f"forked-{os.getpid()}", shape=3, init="constant", initializer_a=7)
    future = client.pull(table).get_future()
    assert future.result()[0] == 7
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("both")
""", prelude="")
    assert out == "both\n"


def test_two_clients_in_one_process(run):
    assert run("""
two = verbena.connect(sys.argv[1], job=f"processes-{os.getpid()}", expected_workers=2, rank=1)
shared = two.open_table(table.name)
for step in range(50):
    handles = [c.push_pull(t, np.full(1000, c.rank + 1, np.float32), np.zeros(1000, np.float32))
               for c, t in ((client, table), (two, shared))]
    for handle in handles:
        assert np.all(handle.wait() == -1.5 * (step + 1))
two.close()
print("equal")
""") == "equal\n"


def test_a_fork_server_of_data_loader_workers(run):
    pytest.importorskip("torch")
    assert run("""
import torch
data = torch.utils.data.TensorDataset(torch.arange(40.0))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
one = verbena.connect(sys.argv[1], job=f"loader-{os.getpid()}")
weights = one.table(f"loader-{os.getpid()}", shape=4, rate=1)
out = torch.zeros(4)
for (batch,) in loader:
    one.push_pull(weights, batch, out).wait()
print(-out.sum().item())
""") == "780.0\n"
