"""DiLoCo and LocalSGD: workers train on their own, and exchange parameters every so many steps."""
from __future__ import annotations

import types
from typing import Any, List, Mapping, Optional, Sequence, Union

import torch

from .._client import Client
from .all_reduce import refuse_elastic
from .buckets import Bucket, make_buckets, unique_parameters
from .rules import Rule, rule_of

# A fragment is one table for each type of its parameters.
_ALL = 1 << 62


class DiLoCo:
    """Streaming DiLoCo (Douillard et al., arXiv 2311.08105 and 2501.18512) on the servers.

        inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with verbena.torch.DiLoCo([model], inner, "nesterov", sync_every=100, client=client,
                                  rate=0.7, parameters={"momentum": 0.9}):
            for batch in loader:
                inner.zero_grad()
                loss(model, batch).backward()
                inner.step()             # every 100th step also exchanges parameters

    Each `sync_every` steps a worker pushes the change of a fragment since its last exchange. The
    servers take the mean over the workers as the gradient of the outer optimizer, and the worker
    continues with the parameters that this makes. Workers make the same number of steps.
    """

    def __init__(self, model_fragments: Sequence[torch.nn.Module],
                 inner_optimizer: torch.optim.Optimizer,
                 outer_optimizer: Union[torch.optim.Optimizer, str], sync_every: int,
                 should_quantize: bool = False, fragment_sync_delay: int = 0,
                 fragment_update_alpha: float = 0.0, *, client: Client,
                 rate: Optional[float] = None, parameters: Optional[Mapping[str, float]] = None,
                 name: str = "diloco", resume: bool = False, **table_options: Any) -> None:
        """Creates the tables. All workers make the call; the parameters of rank 0 are the first.

        model_fragments: modules that are exchanged in turn, at equal distances within `sync_every`
            steps; the same on all workers. One fragment: the whole model at once.
        inner_optimizer: the local optimizer; its step() is wrapped within the context manager.
        outer_optimizer: of the servers: a torch.optim optimizer with one param group, such as
            SGD(..., lr=0.7, momentum=0.9, nesterov=True), or a name with `rate` and `parameters`.
        sync_every: steps, a multiple of the number of fragments.
        should_quantize: push int8 with error feedback, a quarter of the bytes.
        fragment_sync_delay: steps between the push of a fragment and the use of its result, less
            than the steps between two fragments; the exchange overlaps with them.
        fragment_update_alpha: share of the local parameters that is kept then; 0: none.
        name, table_options: of the tables. resume: begin with the parameters of existing tables.

        Raises ValueError for arguments that are refused; verbena.Error.
        """
        refuse_elastic(client, "local SGD")
        count = len(model_fragments)
        if count == 0 or sync_every < 1 or sync_every % count != 0:
            raise ValueError(f"sync_every is {sync_every} with {count} fragments; allowed: a "
                             "multiple of the number of fragments, at least one")
        self._distance = sync_every // count
        if not 0 <= fragment_sync_delay < self._distance:
            raise ValueError(f"fragment_sync_delay is {fragment_sync_delay}; allowed: "
                             f"0..{self._distance - 1}, less than the steps between fragments")
        if not 0 <= fragment_update_alpha <= 1:
            raise ValueError(f"fragment_update_alpha is {fragment_update_alpha}; allowed: 0..1")
        self._client = client
        self._inner = inner_optimizer
        self._delay = fragment_sync_delay
        self._alpha = fragment_update_alpha
        self._steps = 0
        self._active = False
        if should_quantize:
            table_options["push_codec"] = "int8"
        rule = self._outer_rule(outer_optimizer, rate, parameters)
        self._fragments: List[List[Bucket]] = []
        for number, module in enumerate(model_fragments):
            buckets = make_buckets(f"{name}/{number}",
                                   [unique_parameters(list(module.named_parameters()))], _ALL)
            for bucket in buckets:
                bucket.create(client, rule, {"consistency": "sync", **table_options})
            self._fragments.append(buckets)
        self._begin(resume)

    @staticmethod
    def _outer_rule(outer: Union[torch.optim.Optimizer, str], rate: Optional[float],
                    parameters: Optional[Mapping[str, float]]) -> Rule:
        if isinstance(outer, str):
            if rate is None:
                raise ValueError("rate is None; allowed: a number, with the name of an optimizer")
            return rule_of(outer, {"lr": rate, **(parameters or {})}, 0)
        if rate is not None or parameters is not None or len(outer.param_groups) != 1:
            raise ValueError("outer_optimizer has its own rate and parameters, and has to have one "
                             "param group")
        return rule_of(outer, outer.param_groups[0], 0)

    def _begin(self, resume: bool) -> None:
        handles = []
        for bucket in (b for buckets in self._fragments for b in buckets):
            if not resume:
                if self._client.rank == 0:
                    with torch.no_grad():
                        for slot in bucket.slots:
                            slot.pack_parameter()
                    handles.append(self._client.assign(bucket.table, bucket.parameters))
                handles.append(self._client.end_step(bucket.table))
        for handle in handles:
            handle.wait()
        for bucket in (b for buckets in self._fragments for b in buckets):
            bucket.handles.append(self._client.pull(bucket.table, bucket.parameters))
            bucket.wait()

    # ---- context manager ------------------------------------------------------------------------

    def __enter__(self) -> "DiLoCo":
        inner_step = self._inner.step

        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = inner_step(*args, **kwargs)
            if self._active:
                self._after_step()
            return result

        # A bound method, which schedulers can wrap. It stays: they may have wrapped it.
        self._inner.step = types.MethodType(step, self._inner)  # type: ignore[assignment]
        self._active = True
        return self

    def __exit__(self, *_: object) -> None:
        self._active = False

    # ---- exchange -------------------------------------------------------------------------------

    def _after_step(self) -> None:
        self._steps += 1
        number, past = divmod(self._steps, self._distance)
        if number > 0 and past == 0:
            self._start(self._fragments[(number - 1) % len(self._fragments)])
        if number > 0 and past == self._delay:
            self._finish(self._fragments[(number - 1) % len(self._fragments)])

    def _start(self, fragment: List[Bucket]) -> None:
        for bucket in fragment:
            with torch.no_grad():
                for slot in bucket.slots:
                    slot.pack_movement()
            bucket.handles.append(
                self._client.push_pull(bucket.table, bucket.gradient, bucket.parameters))

    def _finish(self, fragment: List[Bucket]) -> None:
        for bucket in fragment:
            bucket.wait(keep=self._alpha)


class LocalSGD(DiLoCo):
    """Workers train on their own and take the mean of their parameters every `sync_every` steps.

    Otherwise as DiLoCo.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: int, *,
                 client: Client, name: str = "local_sgd", **options: Any) -> None:
        """model: on all workers. optimizer: the local one. options: of DiLoCo."""
        super().__init__([model], optimizer, "sgd", sync_every, client=client, rate=1.0, name=name,
                         **options)
