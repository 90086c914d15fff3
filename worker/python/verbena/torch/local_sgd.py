"""DiLoCo and LocalSGD: workers train on their own, and exchange parameters every so many steps."""
from __future__ import annotations

import time
import types
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import torch

from .._client import Client
from .._errors import FailedPreconditionError
from .all_reduce import AllReduce
from .buckets import Bucket, check_tables, make_buckets, unique_parameters
from .refusals import NotCopied, refuse_state
from .rules import Rule, rule_of

# A fragment is one table for each type of its parameters.
_ALL = 1 << 62

_QUORUM_POLL_SECONDS = 0.05


class QuorumError(FailedPreconditionError):
    """A round of DiLoCo has fewer workers than `min_workers`."""


class DiLoCo(NotCopied):
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

    A round is over when all workers of the job have pushed. If a worker dies, the round waits for
    its lease; then the mean is that of the others.

    In an elastic job (connect(max_workers=)) with one fragment, workers may join a run. One that
    joins begins with the parameters of the last round and takes part in the next; `steps` is the
    number of steps before its first one. Its inner optimizer is a new one.
    """

    def __init__(self, model_fragments: Sequence[torch.nn.Module],
                 inner_optimizer: torch.optim.Optimizer,
                 outer_optimizer: Union[torch.optim.Optimizer, str], sync_every: int,
                 should_quantize: bool = False, fragment_sync_delay: int = 0,
                 fragment_update_alpha: float = 0.0, *, client: Client,
                 rate: Optional[float] = None, parameters: Optional[Mapping[str, float]] = None,
                 name: str = "diloco", resume: bool = False, min_workers: int = 1,
                 grace: Optional[float] = None, **table_options: Any) -> None:
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
        name, table_options: of the tables. resume: begin with the parameters of existing tables;
            raises verbena.NotFoundError if one does not exist.
        min_workers: a round begins only while the job has so many workers with a lease. A worker
            that dies after the others have begun the round is not noticed before the next one.
        grace: seconds for which a round waits for min_workers, and then for the pushes of the other
            workers; default: the client's timeout for the latter, and 0 for the former. It has to
            be longer than the lease of a dead worker and than the lag of a slow one.

        Raises ValueError for arguments that are refused; verbena.Error.
        """
        count = len(model_fragments)
        if count == 0 or sync_every < 1 or sync_every % count != 0:
            raise ValueError(f"sync_every is {sync_every} with {count} fragments; allowed: a "
                             "multiple of the number of fragments, at least one")
        if client.elastic and count > 1:
            raise ValueError(f"model_fragments has {count} fragments; allowed in an elastic job "
                             "(connect(max_workers=)): 1")
        self._distance = sync_every // count
        if not 0 <= fragment_sync_delay < self._distance:
            raise ValueError(f"fragment_sync_delay is {fragment_sync_delay}; allowed: "
                             f"0..{self._distance - 1}, less than the steps between fragments")
        if not 0 <= fragment_update_alpha <= 1:
            raise ValueError(f"fragment_update_alpha is {fragment_update_alpha}; allowed: 0..1")
        if min_workers < 1:
            raise ValueError(f"min_workers is {min_workers}; allowed: 1 and more")
        if grace is not None and grace <= 0:
            raise ValueError(f"grace is {grace} s; allowed: more than 0, or None")
        self._min_workers = min_workers
        self._grace = grace
        self._all_reduce = AllReduce(client, f"{name}/all")
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
            self._fragments.append(make_buckets(
                f"{name}/{number}", [unique_parameters(list(module.named_parameters()))], _ALL))
        if resume:
            check_tables(client, self._buckets())
        for bucket in self._buckets():
            bucket.create(client, rule, {"consistency": "sync", **table_options})
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
        refuse_state(outer, "outer_optimizer", "pass a new one (`verbena checkpoint` saves and "
                     "restores the state on the servers)")
        return rule_of(outer, outer.param_groups[0], 0)

    def _begin(self, resume: bool) -> None:
        joined = max((self._client.first_step(bucket.table) for bucket in self._buckets()), default=0)
        if joined > 0:  # a run, which has taken a step to assign the first parameters
            self._steps = (joined if resume else joined - 1) * self._distance
        elif not resume:
            for bucket in self._buckets():
                with torch.no_grad():
                    for slot in bucket.slots:
                        slot.pack_parameter()
            self._assign()
        for bucket in self._buckets():
            bucket.handles.append(self._client.pull(bucket.table, bucket.parameters))
            bucket.wait()

    def _buckets(self) -> List[Bucket]:
        return [bucket for buckets in self._fragments for bucket in buckets]

    def _assign(self) -> None:
        """Writes the parameters in the buckets of rank 0 to the servers, as a step."""
        handles = []
        for bucket in self._buckets():
            if self._client.rank == 0:
                handles.append(self._client.assign(bucket.table, bucket.parameters))
            handles.append(self._client.end_step(bucket.table))
        for handle in handles:
            handle.wait()

    @property
    def steps(self) -> int:
        """Number of this worker's steps before the next one.

        A worker that has joined a run of an elastic job takes it over: its data and schedulers go
        on from there.
        """
        return self._steps

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

    def _wait_for_quorum(self) -> None:
        end = time.monotonic() + (self._grace or 0.0)
        while (live := self._client.info()["live_workers"]) < self._min_workers:
            left = end - time.monotonic()
            if left <= 0:
                raise QuorumError(
                    f"DiLoCo step {self._steps}: the job has {live} workers and min_workers is "
                    f"{self._min_workers} (waited for {self._grace or 0:g} s); start workers again "
                    "from a state_dict(), or pass a smaller min_workers")
            time.sleep(min(left, _QUORUM_POLL_SECONDS))

    def _start(self, fragment: List[Bucket]) -> None:
        self._wait_for_quorum()
        for bucket in fragment:
            with torch.no_grad():
                for slot in bucket.slots:
                    slot.pack_movement()
            bucket.handles.append(
                self._client.push_pull(bucket.table, bucket.gradient, bucket.parameters,
                                       timeout=self._grace))

    def _finish(self, fragment: List[Bucket]) -> None:
        for bucket in fragment:
            bucket.wait(keep=self._alpha)

    # ---- state ----------------------------------------------------------------------------------

    def _in_flight(self) -> List[Bucket]:
        """The fragment that was pushed and whose result is not used yet."""
        number, past = divmod(self._steps, self._distance)
        if number == 0 or past >= self._delay:
            return []
        return self._fragments[(number - 1) % len(self._fragments)]

    def state_dict(self) -> Dict[str, Any]:
        """This worker's steps, inner optimizer and parameters, and those of the last exchange.

        It waits for an exchange in flight. Call it between steps, on every worker after the same
        step. The outer optimizer's state is on the servers; `verbena checkpoint` saves it.
        """
        for bucket in self._in_flight():
            for handle in bucket.handles:
                handle.wait()  # again in _finish()
        return {"steps": self._steps, "inner_optimizer": self._inner.state_dict(),
                "fragments": [[{"layout": bucket.layout(), "exchanged": bucket.parameters.clone(),
                                "parameters": [slot.parameter.detach().clone()
                                               for slot in bucket.slots]}
                               for bucket in buckets] for buckets in self._fragments]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state_dict(); each worker its own, all of the same step, before training goes on.

        The servers get the exchanged parameters of rank 0. They keep the outer optimizer's state:
        the run equals one without a pause if they have made no round since, or were restored from a
        checkpoint of that step, or have no such state (LocalSGD). The remainders of int8 pushes are
        not in it.

        Raises ValueError, with nothing changed, for other fragments or other steps than those of
        the other workers; RuntimeError in an elastic job; verbena.Error.
        """
        given = state_dict["fragments"]
        layouts = [[bucket.layout() for bucket in buckets] for buckets in self._fragments]
        if [[each["layout"] for each in buckets] for buckets in given] != layouts:
            raise ValueError("state_dict has other fragments or parameters; allowed: those of this "
                             "DiLoCo")
        steps = int(state_dict["steps"])
        self._check_same_on_all(steps)
        self._inner.load_state_dict(state_dict["inner_optimizer"])
        with torch.no_grad():
            for buckets, saved in zip(self._fragments, given):
                for bucket, each in zip(buckets, saved):
                    bucket.parameters.copy_(each["exchanged"])
        self._assign()
        self._steps = steps
        in_flight = self._in_flight()
        for buckets, saved in zip(self._fragments, given):
            for bucket, each in zip(buckets, saved):
                bucket.handles = [self._client.pull(bucket.table, bucket.parameters)]
                bucket.wait()
                with torch.no_grad():
                    for slot, value in zip(bucket.slots, each["parameters"]):
                        slot.parameter.copy_(value)
                if bucket in in_flight:  # for _finish()
                    bucket.handles = [self._client.pull(bucket.table, bucket.parameters)]

    def _check_same_on_all(self, steps: int) -> None:
        # The rounding of a mean of 12 bits is less than the 1 / workers of a difference.
        digits = torch.tensor([float(steps >> shift & 0xFFF) for shift in (0, 12, 24, 36)])
        mean = digits.clone()
        self._all_reduce.start("steps", mean).wait()
        if float((mean + digits).abs().max()) > 0.002:
            raise ValueError(f"state_dict is of step {steps}, and that of another worker is of "
                             "another step; allowed: states that all workers made after one step")


class LocalSGD(DiLoCo):
    """Workers train on their own and take the mean of their parameters every `sync_every` steps.

    Otherwise as DiLoCo.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: int, *,
                 client: Client, name: str = "local_sgd", **options: Any) -> None:
        """model: on all workers. optimizer: the local one. options: of DiLoCo."""
        super().__init__([model], optimizer, "sgd", sync_every, client=client, rate=1.0, name=name,
                         **options)
