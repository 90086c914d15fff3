"""Workers that join, leave and are killed in a run of an elastic job, in processes of their own."""
import concurrent.futures
import multiprocessing
import os
import signal

import numpy as np
import pytest

import verbena

ELEMENTS = 3000
RATE = 0.25
MOST = 6  # workers that the test starts
GO_ON = 1 << 30

STOP, LEAVE, KILL = 0, 1, 2


def gradient(number, step):
    random = np.random.default_rng([number, step])
    return random.standard_normal(ELEMENTS).astype(np.float32)


def work(address, job, number, orders, steps, results):
    """Trains until its order says otherwise. steps[number]: those that it has seen committed."""
    with verbena.connect(address, job=job, name=f"worker-{number}", expected_workers=2,
                         max_workers=5, timeout=60) as client:
        table = client.table(job, shape=ELEMENTS, rate=RATE, reduction="mean", chunk_bytes=4096)
        first = step = client.first_step(table)
        results.put((number, client.rank, first))
        parameters = client.pull(table).wait()
        while True:
            what, at = orders[2 * number], orders[2 * number + 1]
            if step >= at:
                break
            client.push_pull(table, gradient(number, step), parameters).wait()
            step += 1
            steps[number] = step
        if what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == STOP:
            results.put((number, parameters.copy(), client.members(table)))


def reference(ranks, spans, steps):
    """In one process: each step has the members whose span contains it, in the order of ranks."""
    parameters = np.zeros(ELEMENTS, np.float32)
    counts = []
    for step in range(steps):
        members = [n for n, (first, end) in spans.items() if first <= step < end]
        total = None
        for number in sorted(members, key=lambda n: ranks[n]):
            pushed = gradient(number, step)
            total = pushed if total is None else total + pushed
        counts.append(len(members))
        if total is not None:
            parameters = parameters - np.float32(RATE) * (total / np.float32(len(members)))
    return parameters, counts


class Run:
    """The worker processes of a job, started and ended one after another."""

    def __init__(self, address, job):
        self.spawn = multiprocessing.get_context("spawn")
        self.orders = self.spawn.Array("q", [STOP, GO_ON] * MOST)
        self.steps = self.spawn.Array("q", MOST)
        self.results = self.spawn.SimpleQueue()
        self.arguments = (address, job)
        self.processes, self.ranks, self.first = {}, {}, {}

    def start(self, *numbers):
        for number in numbers:
            self.processes[number] = self.spawn.Process(
                target=work, daemon=True,
                args=(*self.arguments, number, self.orders, self.steps, self.results))
            self.processes[number].start()
        for _ in numbers:
            number, rank, first = self.results.get()
            self.ranks[number], self.first[number] = rank, first

    def wait_for(self, number, steps):
        """Until the worker has made so many more steps."""
        wanted = max(self.steps[number], self.first[number]) + steps
        while self.steps[number] < wanted:
            assert self.processes[number].is_alive()
            self.processes[number].join(0.01)

    def order(self, number, what, at=0):
        with self.orders.get_lock():
            self.orders[2 * number], self.orders[2 * number + 1] = what, at

    def end(self, number, what):
        self.order(number, what)
        self.processes[number].join(60)
        assert self.processes[number].exitcode == (-signal.SIGKILL if what == KILL else 0)


@pytest.mark.parametrize("servers, replicas", [(2, 1), (3, 2)])
def test_workers_come_and_go(servers, replicas):
    with verbena.local_cluster(servers=servers, replicas=replicas,
                               options=("--lease-ms", "1000")) as cluster:
        run = Run(cluster.address, "grows")
        run.start(0, 1)
        assert sorted(run.ranks.values()) == [0, 1]
        run.wait_for(0, 5)
        run.start(2, 3)
        assert run.first[2] > 0 and run.first[3] > 0
        for number in (2, 3):
            run.wait_for(number, 5)
        run.end(1, LEAVE)
        run.wait_for(2, 5)
        run.start(4, 5)
        assert run.ranks[1] in (run.ranks[4], run.ranks[5])  # the rank is used again
        for number in (4, 5):
            run.wait_for(number, 5)
        run.end(3, KILL)
        run.wait_for(5, 5)
        last = max(run.steps) + 10
        left = (0, 2, 4, 5)
        for number in left:
            run.order(number, STOP, last)
        found = [run.results.get() for _ in left]
        spans = {number: (run.first[number], run.steps[number]) for number in run.processes}
        parameters, counts = reference(run.ranks, spans, last)
        for number, pulled, members in found:
            assert np.array_equal(pulled, parameters), f"worker {number}"
            assert {m["name"] for m in members} <= {f"worker-{n}" for n in left}
        later = iter(counts)
        assert all(members in later for members in (2, 4, 3, 5, 4)), counts


def test_a_joining_worker_waits_for_a_worker_of_the_run(connect):
    first = connect(expected_workers=1, max_workers=2)
    table = first.table("waits", shape=8, rate=1)
    first.push_pull(table, np.ones(8, np.float32), np.zeros(8, np.float32)).wait()
    second = connect(expected_workers=1, max_workers=2)
    opened = second.open_table("waits")
    assert second.first_step(opened) > 0 and second.rank == 1
    assert [m["rank"] for m in first.members(table)] == [0, 1]
    with pytest.raises(verbena.AlreadyExistsError, match="max_workers"):
        connect(expected_workers=1, max_workers=2, timeout=2)
    with pytest.raises(verbena.InvalidArgumentError, match="was started with 2"):
        connect(expected_workers=1, max_workers=3)


def test_an_array_is_assigned_once(connect):
    first = connect(expected_workers=1, max_workers=2)
    begun = np.arange(8, dtype=np.float32)
    table = first.table("assigned", rate=1, init=begun)
    second = connect(expected_workers=1, max_workers=2)
    joined = second.table("assigned", rate=1, init=np.zeros(8, np.float32))
    step = second.first_step(joined)
    for _ in range(step - 1):  # table() has ended one
        first.end_step(table).wait()
    assert np.array_equal(second.pull(joined).wait(), begun)


@pytest.mark.parametrize("init", [False, True])
def test_a_worker_joins_while_tables_are_created(connect, init):
    options = dict(expected_workers=1, max_workers=2, timeout=20)

    def create(client, name):
        return client.table(f"{name}-{init}", shape=8, rate=1, reduction="sum",
                            init=np.zeros(8, np.float32) if init else None)
    first = connect(**options)
    tables = [create(first, "before")]
    second = connect(**options)
    tables.append(create(first, "after"))
    opened = [create(second, "before"), create(second, "after")]
    begun = [second.first_step(table) for table in opened]
    assert begun[0] == begun[1] > 0

    def train(client, its, iterations):
        for _ in range(iterations):
            done = [client.push_pull(t, np.ones(8, np.float32), np.empty(8, np.float32)) for t in its]
            pulled = [handle.wait() for handle in done]
        return pulled
    alone = begun[0] - int(init)  # a step was the assignment
    with concurrent.futures.ThreadPoolExecutor() as pool:
        workers = [pool.submit(train, first, tables, alone + 3), pool.submit(train, second, opened, 3)]
        for worker in workers:
            for pulled in worker.result():
                assert (pulled == -(alone + 6)).all()
