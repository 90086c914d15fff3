"""Handles: waiting, errors, cancelling, futures, asyncio, callbacks."""
import asyncio
import concurrent.futures
import sys
import threading
import time

import numpy as np
import pytest

import verbena


@pytest.fixture
def open_step(connect):
    """A client with a table whose step waits for another worker, until `finish()`."""
    one, two = connect(expected_workers=2, rank=0), connect(expected_workers=2, rank=1)
    name = f"open-{one.info()['incarnation']}"
    tables = [c.table(name, shape=4, rate=1, reduction="sum") for c in (one, two)]

    class Step:
        client, table = one, tables[0]

        @staticmethod
        def start():
            return one.push_pull(tables[0], np.ones(4, np.float32), np.zeros(4, np.float32))

        @staticmethod
        def finish():
            two.end_step(tables[1])

    return Step


def test_a_wait_with_a_timeout(open_step):
    handle = open_step.start()
    assert not handle.is_completed()
    for timeout in (0, 0.05):
        with pytest.raises(verbena.DeadlineExceededError, match="still running after") as caught:
            handle.wait(timeout)
        assert isinstance(caught.value, TimeoutError)
    open_step.finish()
    assert np.all(handle.wait(20) == -1)
    assert handle.is_completed() and handle.exception() is None


def test_an_operation_with_a_deadline(open_step):
    open_step.client.pull(open_step.table).wait(20)  # the lane is open
    handle = open_step.client.push_pull(open_step.table, np.ones(4, np.float32),
                                        np.zeros(4, np.float32), timeout=0.5)
    with pytest.raises(verbena.DeadlineExceededError, match="rank 1"):
        handle.wait()
    assert isinstance(handle.exception(), verbena.DeadlineExceededError)


def test_cancelling(open_step):
    handle = open_step.start()
    handle.cancel()
    with pytest.raises(verbena.CancelledError) as caught:
        handle.wait()
    assert caught.value.code == "CANCELLED"
    handle.cancel()


def test_the_exception_of_a_running_operation(open_step):
    handle = open_step.start()
    with pytest.raises(verbena.FailedPreconditionError):
        raise handle.exception()
    handle.cancel()


def test_other_threads_run_while_one_waits(open_step):
    handle = open_step.start()
    waiter = threading.Thread(target=handle.wait)
    waiter.start()
    counted = 0
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        counted += 1
    assert counted > 1000 and waiter.is_alive()
    open_step.finish()
    waiter.join(20)
    assert not waiter.is_alive()


def test_a_future(open_step):
    handle = open_step.start()
    future = handle.get_future()
    assert not future.done()
    open_step.finish()
    assert np.all(future.result(20) == -1)
    again = handle.get_future()
    assert np.all(again.result(20) == -1)


def test_a_future_has_the_error(open_step):
    handle = open_step.start()
    future = handle.get_future()
    handle.cancel()
    assert isinstance(future.exception(20), verbena.CancelledError)


def test_a_cancelled_future_cancels(open_step):
    handle = open_step.start()
    future = handle.get_future()
    assert future.cancel()
    with pytest.raises(verbena.CancelledError):
        handle.wait(20)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(20)


def test_callbacks_run_once_each(open_step):
    handle = open_step.start()
    called = []
    done = threading.Event()
    handle.add_done_callback(lambda ended: called.append((1, ended is handle)))
    handle.add_done_callback(lambda ended: (called.append((2, ended.is_completed())), done.set()))
    open_step.finish()
    assert done.wait(20)
    assert called == [(1, True), (2, True)]


def test_a_callback_may_start_operations_and_fail(open_step, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda caught: unraisable.append(caught.exc_type))
    handle = open_step.start()
    results = []
    done = threading.Event()

    def pull(_):
        results.append(open_step.client.pull(open_step.table).wait())
        done.set()

    handle.add_done_callback(lambda _: 1 / 0)
    handle.add_done_callback(pull)
    open_step.finish()
    assert done.wait(20)
    assert np.all(results[0] == -1)
    assert unraisable == [ZeroDivisionError]


def test_asyncio(client):
    table = client.table("async-io", shape=4, rate=1, consistency="async")

    async def train():
        gradient = np.ones(4, np.float32)
        for _ in range(10):
            await client.push(table, gradient)
        return await asyncio.gather(client.pull(table), client.pull(table))

    for pulled in asyncio.run(train()):
        assert np.all(pulled == -10)


def test_asyncio_raises_the_error_and_cancels(open_step):
    async def cancelled():
        handle = open_step.start()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle, 0.05)
        with pytest.raises(verbena.CancelledError):
            handle.wait(20)

    asyncio.run(cancelled())


def test_several_threads_use_one_client(client):
    count = 50
    table = client.table("threads", shape=64 * 4, chunk_bytes=256, rate=1, consistency="async")

    def train(chunk):
        gradient = np.ones(64, np.float32)
        for _ in range(count):
            client.push(table, gradient, first=64 * chunk, count=64).wait()

    threads = [threading.Thread(target=train, args=(chunk,)) for chunk in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.all(client.pull(table).wait() == -count)
