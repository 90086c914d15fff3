"""A cluster for all tests of a file, and clients with a job of their own."""
import itertools
import os

import pytest

import verbena

_jobs = itertools.count()


@pytest.fixture(scope="session")
def cluster():
    with verbena.local_cluster(servers=2, shards=1) as started:
        yield started


@pytest.fixture
def connect(cluster):
    """Connects to a job of this test; closes the clients at its end."""
    job = f"test-{os.getpid()}-{next(_jobs)}"
    clients = []

    def connected(**options):
        clients.append(verbena.connect(cluster, **{"job": job, "timeout": 20, **options}))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def client(connect):
    return connect()
