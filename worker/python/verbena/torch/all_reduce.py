"""Means over the workers of a job, by tables that keep nothing from step to step."""
from __future__ import annotations

from typing import Dict, Tuple

import torch

from .._client import Client
from .._core import Handle, Table

# With these values a step makes w = -mean(g) exactly: the decay removes the old w, and the
# velocity is the gradient. (sgd with an L2 decay of 1 rounds w + g.)
_OPTIMIZER = "momentum"
_PARAMETERS = {"momentum": 0.0, "decoupled_weight_decay": 1.0}


def refuse_elastic(client: Client, what: str) -> None:
    """Raises RuntimeError in an elastic job, where not all workers make all calls."""
    if client.elastic:
        raise RuntimeError(f"{what}: not in an elastic job (connect(max_workers=)), whose workers do "
                           "not all make the same calls; a DistributedOptimizer with "
                           "consistency='sync' works there")


class AllReduce:
    """Means of float32 vectors over the workers, which all make the same calls."""

    def __init__(self, client: Client, name: str) -> None:
        """name: prefix of the tables, the same on all workers."""
        self._client = client
        self._name = name
        self._tables: Dict[Tuple[str, int], Table] = {}

    def table(self, key: str, elements: int) -> Table:
        """The table for vectors of this key and length; created at its first use."""
        refuse_elastic(self._client, "a mean or barrier of all workers")
        found = self._tables.get((key, elements))
        if found is None:
            found = self._client.table(
                f"{self._name}/{key}-{elements}", shape=elements, optimizer=_OPTIMIZER, rate=1.0,
                parameters=_PARAMETERS, consistency="sync", reduction="mean")
            self._tables[(key, elements)] = found
        return found

    def start(self, key: str, vector: torch.Tensor) -> Handle:
        """Starts a mean. When the handle is done, `vector` has the negative of it.

        vector: float32, contiguous; it is read and written until then.
        """
        return self._client.push_pull(self.table(key, vector.numel()), vector, vector)

    def wait_for_all(self) -> None:
        """Returns when all workers have called it."""
        self._client.end_step(self.table("barrier", 1)).wait()
