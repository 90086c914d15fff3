"""Helpers that the tests of verbena.torch share."""
import itertools
import os

import verbena.torch

_names = itertools.count()


def unique(name):
    """A prefix of tables, whose names are unique in a cluster."""
    return f"test-{os.getpid()}-{next(_names)}/{name}"


def distributed(client):
    """Makes DistributedOptimizers with tables of their own; the same name= means the same tables."""
    prefix = unique("torch")

    def made(named, optimizer, name="model", **options):
        return verbena.torch.DistributedOptimizer(
            named, optimizer, **{"client": client, "name": f"{prefix}/{name}", **options})

    return made
