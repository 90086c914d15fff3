"""DistributedOptimizer: a model's parameters on the servers, trained by their optimizers."""
from __future__ import annotations

import time
import weakref
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence,
                    Tuple, Union)

import torch

from .._client import Client
from .._errors import Error
from .._run_log import RunLog
from .all_reduce import AllReduce, refuse_elastic
from .buckets import (Bucket, NamedParameter, Slot, check_tables, group_parameters, make_buckets,
                      unique_parameters)
from .hooks import on_gradient, wait_before_forward
from .meter import Communication, Meter
from .refusals import NotCopied, refuse_state
from .rules import Rule, changes, rule_of
from .state import NewState, read_state

_Optimizer = Union[torch.optim.Optimizer, str]

_MODES = ("sync", "async", "ssp")


class DistributedOptimizer(NotCopied, torch.optim.Optimizer):
    """Trains parameters on the servers: workers push gradients and pull parameters.

        model = Net()
        optimizer = verbena.torch.DistributedOptimizer(
            model.named_parameters(), torch.optim.AdamW(model.parameters(), lr=1e-3), client=client)
        for batch, target in loader:             # this worker's share
            optimizer.zero_grad()
            loss(model(batch), target).backward()    # pushes gradients as they are ready
            optimizer.step()                         # the new parameters are in the model

    Every worker of the job makes the same calls. The parameters of rank 0 are the first ones. In a
    sync table a step applies the mean of the workers' gradients, so with equal shares of a batch
    and a mean loss the model is the one that torch.optim makes of the whole batch.

    Schedulers, zero_grad() and param groups work as in torch.optim. A rate or hyperparameter may be
    changed between step() and the next backward(), and reaches the servers before the step that
    uses it. step() raises RuntimeError if a group or a gradient was changed after its push: for
    that, such as torch.nn.utils.clip_grad_norm_() or an enabled GradScaler, pass overlap=False.
    Changes by `grad.data` raise no version, so that they are not noticed and have no effect then.

    torch.optim leaves parameters without a gradient alone. The servers apply a zero gradient, by
    which momentum and decay go on; so step() raises RuntimeError unless find_unused is True.

    Thread safety: one thread at a time, as torch.optim.
    """

    def __init__(self, named_parameters: Iterable[NamedParameter], optimizer: _Optimizer, *,
                 client: Client, rate: Optional[float] = None,
                 parameters: Optional[Mapping[str, float]] = None, consistency: str = "sync",
                 name: str = "model", bucket_bytes: int = 4 << 20,
                 model: Optional[torch.nn.Module] = None, backward_passes_per_step: int = 1,
                 overlap: bool = True, find_unused: bool = False, resume: bool = False,
                 compression: Optional[str] = None, log: Optional[RunLog] = None,
                 **table_options: Any) -> None:
        """Creates the tables, or opens those of an earlier run, and sets their parameters.

        named_parameters: as of Module.named_parameters(); unique names, the same on all workers.
            Frozen parameters are left out, shared ones are there once. Types: float32, and bfloat16
            and float16 with float32 master copies on the servers.
        optimizer: a torch.optim instance (rules.py lists the classes), whose param groups are used
            and whose own step() must not be called, nor was; or the name of a server's optimizer, with
            `rate` and named `parameters`, for one param group.
        consistency: "sync", "async" or "ssp" (with staleness=).
        name: prefix of the tables.
        bucket_bytes: parameters of a group share a table up to this size; 0, and always for "lamb":
            a table for each parameter.
        model: with it step() returns at once, and each module's forward waits for the parameters
            of its own buckets. Call synchronize() before the parameters are used otherwise.
        backward_passes_per_step: gradients are pushed with this backward pass after a step; they
            are added, as in torch.optim.
        overlap: push during backward; False: in step().
        find_unused: parameters without a gradient take part with zeros.
        resume: begin with the parameters of existing tables, not with those of rank 0; raises
            verbena.NotFoundError if one does not exist. A worker that joins a run of an elastic
            job (connect(max_workers=)) begins with them in any case.
        compression: encoding of pushed gradients, such as "int8" (docs/codecs.md); push_codec of
            the tables.
        log: step() calls log.step(), with the result of its closure as the loss; otherwise call
            log.add(loss, samples) before. Pass it to one optimizer of a run.
        table_options: more options of the tables, such as clip_global_norm=1.0 (which scales by
            norm / limit, where clip_grad_norm_() adds 1e-6 to the norm), reduction="sum".

        Raises TypeError and ValueError for arguments that are refused; verbena.AlreadyExistsError
        if tables of this name have other options or parameters.
        """
        if consistency not in _MODES:
            raise ValueError(f"consistency is {consistency!r}; allowed: {', '.join(_MODES)}")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; "
                             "allowed: 1 and more")
        everything = list(named_parameters)
        named = unique_parameters(everything)
        if isinstance(optimizer, str):
            if rate is None:
                raise ValueError("rate is None; allowed: a number, with the name of an optimizer")
            groups = [{"params": [p for _, p in named], "lr": rate, **(parameters or {})}]
        elif rate is not None or parameters is not None:
            raise ValueError("rate and parameters are for the name of a server's optimizer; "
                             "a torch.optim optimizer has its own")
        else:
            refuse_state(optimizer, "optimizer", "pass a new one, and load the state_dict() into "
                         "the DistributedOptimizer, by its load_state_dict()")
            groups = optimizer.param_groups
        self._complete = False
        super().__init__(groups, {} if isinstance(optimizer, str) else dict(optimizer.defaults))
        self._complete = True
        self._in_backward = False  # also after one that raised
        if not isinstance(optimizer, str):
            self.param_groups = optimizer.param_groups  # the same dicts: schedulers may have either
        self._rules_of = optimizer
        self._client = client
        self._consistency = consistency
        self._passes = backward_passes_per_step
        self._overlap = overlap
        self._find_unused = find_unused
        self._steps = 0
        self._log = log
        if log is not None:
            log.describe(optimizer=optimizer if isinstance(optimizer, str)
                         else type(optimizer).__name__.lower(), consistency=consistency)
        self._all_reduce = AllReduce(client, f"{name}/all")
        if compression is not None:
            table_options["push_codec"] = compression
        self._make_tables(everything, named, name, bucket_bytes, {"consistency": consistency, **table_options},
                          resume)
        joined = self._first_step()
        if joined > 0:
            self._steps = joined if resume else joined - 1  # assign_parameters() has taken one
        if resume or joined > 0:
            self.pull_parameters()
        else:
            self.assign_parameters()
        self._defer = model is not None
        self._add_hooks(model)

    # ---- tables ---------------------------------------------------------------------------------

    def _make_tables(self, everything: List[NamedParameter], named: List[NamedParameter],
                     prefix: str, bucket_bytes: int, options: Dict[str, Any], resume: bool) -> None:
        by_group = group_parameters(named, self.param_groups)
        self._frozen = [(name, parameter) for name, parameter in everything
                        if not parameter.requires_grad]
        if self._rules_of == "lamb":
            bucket_bytes = 0  # its trust ratio is that of a table
        self._buckets = make_buckets(prefix, by_group, bucket_bytes)
        if resume:
            check_tables(self._client, self._buckets)
        self._meter = Meter()
        order = {name: number for number, (name, _) in enumerate(named)}
        for bucket in self._buckets:
            bucket.meter = self._meter
            # Before the schedulers: a table's specification is the same in every run.
            group = dict(self.param_groups[bucket.group])
            group["lr"] = group.get("initial_lr", group["lr"])
            bucket.create(self._client, rule_of(self._rules_of, group, 0), options)
            # The next forward needs the first parameters first, whose gradients come last.
            self._client.set_priority(bucket.table, -min(order[s.name] for s in bucket.slots))

    def _slots(self) -> Iterator[Slot]:
        return (slot for bucket in self._buckets for slot in bucket.slots)

    def layout(self) -> Dict[str, List[Tuple[str, int, Tuple[int, ...]]]]:
        """Returns by name of each table the name, first element and shape of its parameters.

        It finds the parameters in a checkpoint's tables.
        """
        return {bucket.name: bucket.layout() for bucket in self._buckets}

    def assign_parameters(self) -> None:
        """Writes the model's parameters of rank 0 to the servers, and then into every worker's model.

        All workers call it, between steps: after a checkpoint was loaded into the model, for
        example. The optimizer state on the servers stays, but it
        counts as one apply: "step" in state_dict() is one more. In sync tables it takes a step.
        """
        self.synchronize()
        handles = []
        with torch.no_grad():
            for bucket in self._buckets:
                if self._client.rank == 0:
                    for slot in bucket.slots:
                        slot.pack_parameter()
                    handles.append(self._client.assign(bucket.table, bucket.parameters))
                if self._consistency == "sync":
                    handles.append(self._client.end_step(bucket.table))
        for handle in handles:
            handle.wait()
        if self._consistency != "sync":
            self._all_reduce.wait_for_all()
        self.pull_parameters()

    def _first_step(self) -> int:
        """The tables' step with which this worker joins a run; 0: it begins with the run."""
        if self._consistency != "sync":
            return 0
        return max((self._client.first_step(bucket.table) for bucket in self._buckets), default=0)

    @property
    def steps(self) -> int:
        """Number of steps of the model before the next one.

        A worker that has joined a run of an elastic job takes it over: its data and schedulers go
        on from there.
        """
        return self._steps

    def pull_parameters(self) -> None:
        """Writes the servers' parameters into the model; after step() has raised, for example."""
        for bucket in self._buckets:
            bucket.started = time.perf_counter()
            bucket.handles.append(self._client.pull(bucket.table, bucket.parameters))
        self.synchronize()

    # ---- hooks ----------------------------------------------------------------------------------

    def _add_hooks(self, model: Optional[torch.nn.Module]) -> None:
        # Hooks live as long as the parameters; they must not keep the optimizer alive.
        self_reference = weakref.ref(self)

        def hook_of(slot: Slot) -> Callable[[], None]:
            slot_reference = weakref.ref(slot)

            def hook() -> None:
                optimizer, ready = self_reference(), slot_reference()
                if optimizer is not None and ready is not None:
                    optimizer._gradient_ready(ready)
            return hook

        self._hooks = [on_gradient(slot.parameter, hook_of(slot))
                       for slot in self._slots()]
        if model is not None:
            self._hooks += wait_before_forward(model, self._buckets, self)

    def _gradient_ready(self, slot: Slot) -> None:
        bucket = slot.bucket
        if bucket.handles and not bucket.pushed:
            raise RuntimeError(
                f"the gradient of {slot.name!r} was computed from parameters before the last step: "
                "a module used it that does not own it. Call synchronize() before the forward pass, "
                "or pass no model")
        self._note_backward()
        slot.passes += 1
        if slot.repeated:
            slot.keep_pushed()
            return
        if slot.packed:
            raise RuntimeError(
                f"the gradient of {slot.name!r} was pushed, and then another backward pass added "
                "to it; call step() first, or zero_grad() after a backward pass that raised, or pass "
                "backward_passes_per_step or overlap=False")
        if not self._overlap or slot.passes < self._passes:
            return
        slot.pack()
        if all(s.packed for s in bucket.slots):
            self._push(bucket)

    def _note_backward(self) -> None:
        """Finds backward passes that raise: autograd calls back at the end of the others only."""
        if self._in_backward:
            return
        self._in_backward = True
        reference = weakref.ref(self)

        def ended() -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._in_backward = False
        torch.autograd.Variable._execution_engine.queue_callback(ended)

    # ---- a step ---------------------------------------------------------------------------------

    def _rule(self, bucket: Bucket) -> Rule:
        return rule_of(self._rules_of, self.param_groups[bucket.group], self._steps)

    def _push(self, bucket: Bucket) -> None:
        client, rule = self._client, self._rule(bucket)
        assert bucket.rule is not None
        bucket.started = time.perf_counter()
        rate, parameters = changes(bucket.rule, rule)
        if rate is not None or parameters:
            bucket.handles.append(client.set_optimizer(bucket.table, rate=rate, **parameters))
            bucket.rule = rule
        # In a sync table it also ends the step.
        bucket.handles.append(client.push_pull(bucket.table, bucket.gradient, bucket.parameters))
        if self._consistency == "ssp":
            bucket.handles.append(client.end_step(bucket.table))
        bucket.pushed = True

    def _check_pushed(self, bucket: Bucket) -> None:
        """Checks that the push has the gradients that torch.optim would use now."""
        for slot in bucket.slots:
            if slot.changed_since():
                raise RuntimeError(
                    f"the gradient of {slot.name!r} was changed after its push, which has the old "
                    "one. To change gradients between backward() and step(), as clip_grad_norm_() "
                    "and GradScaler do, pass overlap=False; the servers clip by clip_global_norm=")
        if bucket.rule != self._rule(bucket):
            raise RuntimeError(
                f"param_groups[{bucket.group}] was changed between backward() and step(): its "
                "gradients were pushed with the old values. Change it before backward(), or pass "
                "overlap=False")

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.requires_grad and parameter.grad is not None:
                raise RuntimeError(
                    f"parameter {name!r} has a gradient and was frozen when the optimizer was made, "
                    "so it has no table. Make a new optimizer with another name= after unfreezing")

    def _pack_rest(self, bucket: Bucket) -> None:
        for slot in bucket.slots:
            if slot.packed and not slot.changed_since():
                continue
            if slot.parameter.grad is None and not self._find_unused:
                raise RuntimeError(
                    f"parameter {slot.name!r} has no gradient; torch.optim would leave it alone, "
                    "the servers apply a zero gradient with its momentum and decay. Pass "
                    "find_unused=True for that, or freeze the parameter before the optimizer")
            slot.pack()

    # GradScaler.step() then calls step() in any case, with itself.
    _step_supports_amp_scaling = True

    def _unscale(self, scaler: Any) -> bool:
        """Divides the gradients by the scale; false: a worker has an infinity or NaN."""
        refuse_elastic(self._client, "an enabled GradScaler")
        if self._overlap:
            raise RuntimeError("an enabled GradScaler divides gradients after backward(), when "
                               "they were pushed; pass overlap=False")
        state = scaler._per_optimizer_states[id(self)]  # there is no public interface
        if state["stage"].value == 0:  # not yet by the caller
            scaler.unscale_(self)
        found = torch.tensor([sum(float(value) for value in state["found_inf_per_device"].values())],
                             dtype=torch.float32)
        if self._consistency == "sync":  # all workers make the step, or none
            self._all_reduce.start("scaler", found).wait()
        return not bool(found.any())

    def step(self, closure: Optional[Callable[[], Any]] = None, *, grad_scaler: Any = None) -> Any:
        """Ends the step: pushes the remaining gradients, and waits for the new parameters.

        closure: computes the loss and gradients, as in torch.optim; its result is returned.
        grad_scaler: of GradScaler.step(), which passes itself if it is enabled. If the gradient of
            a worker has an infinity or NaN, all workers skip the step.

        With a `model` the next forward waits. Raises RuntimeError (see the class), or the
        verbena.Error of a push or pull.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if grad_scaler is not None and not self._unscale(grad_scaler):
            for slot in self._slots():
                slot.begin_step()
            return loss
        self._check_frozen()
        for bucket in self._buckets:  # all, before anything is pushed
            if bucket.pushed:
                self._check_pushed(bucket)
            else:
                self._pack_rest(bucket)
        for bucket in self._buckets:
            if not bucket.pushed:
                self._push(bucket)
        self._in_backward = False
        for bucket in self._buckets:
            bucket.pushed = False
        for slot in self._slots():
            slot.begin_step()
        self._steps += 1
        self._meter.fold()
        if not self._defer:
            self.synchronize()
        if self._log is not None:
            self._log.step(loss)
        return loss

    def synchronize(self) -> None:
        """Waits until the model has the parameters of the last step.

        Raises the first verbena.Error of its operations, when all have ended.
        """
        first: Optional[Error] = None
        for bucket in self._buckets:
            try:
                bucket.wait()
            except Error as error:
                first = first or error
        if first is not None:
            raise first

    @property
    def communication(self) -> Communication:
        """The time of pushes and pulls so far, and its part for which training waited."""
        return self._meter.read()

    # ---- torch.optim ----------------------------------------------------------------------------

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch.optim. A backward pass that was not pushed, or that raised, no longer counts.

        If it raised after it had pushed some gradients, they stay in the step, and the next backward
        pass adds those of the other parameters: with the same batch the step is the one without the
        exception.
        """
        super().zero_grad(*args, **kwargs)
        raised, self._in_backward = self._in_backward, False
        for slot in self._slots():
            if not slot.bucket.pushed:
                slot.begin_step()
            elif raised:
                slot.repeated = True
            if slot.repeated:
                slot.keep_pushed()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refused after construction: tables are created before the first step."""
        if self._complete:
            raise NotImplementedError("DistributedOptimizer has no new param groups after its "
                                      "construction; make a new optimizer with another name=")
        super().add_param_group(param_group)

    def _index_of(self) -> Callable[[Slot], int]:
        """The parameters' indices of torch.optim: their places in the param groups."""
        indices: Dict[int, int] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                indices.setdefault(id(parameter), len(indices))
        return lambda slot: indices[id(slot.parameter)]

    def state_dict(self) -> Dict[str, Any]:
        """State, param groups, steps, and parameters by name.

        "state" and "param_groups" are those of torch.optim, which loads them: by index of the
        parameter the arrays of the servers' optimizer, such as "exp_avg", and "step". Of a sync
        table parameters and state are those of one step. Each worker, or one of them, calls it
        between step() and the next backward().
        """
        self.synchronize()
        groups = []
        first = 0
        for group in self.param_groups:
            packed = {key: value for key, value in group.items() if key != "params"}
            packed["params"] = list(range(first, first + len(group["params"])))
            first += len(group["params"])
            groups.append(packed)
        return {"state": read_state(self._client, self._buckets, self._index_of()),
                "param_groups": groups, "steps": self._steps,
                "parameters": {slot.name: slot.parameter.detach().clone() for slot in self._slots()}}

    def _check_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        sizes = [len(group["params"]) for group in groups if "params" in group]
        own = [len(group["params"]) for group in self.param_groups]
        if len(groups) != len(own) or (sizes and sizes != own):
            raise ValueError(f"state_dict has param groups of {sizes or len(groups)} parameters; "
                             f"allowed: {own}, those of this optimizer")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state_dict() of this class or of torch.optim; all workers call it, between steps.

        The servers get the state of rank 0, and the "parameters" of rank 0, or without these the
        parameters in its model. In sync tables it takes a step, and one more for each array of the
        state. Without "state" the servers keep theirs.

        Raises ValueError, with nothing changed, if the groups, parameters or state are not those of
        this optimizer, or if parameters of one table have different steps.
        """
        slots = {slot.name: slot for slot in self._slots()}
        given = state_dict.get("parameters")
        if given is not None:
            if set(given) != set(slots):
                odd = sorted(set(given) ^ set(slots))
                raise ValueError(f"state_dict has other parameters: {odd}; allowed: those of this "
                                 "optimizer")
            for name, value in given.items():
                if value.shape != slots[name].parameter.shape:
                    raise ValueError(f"state_dict has {name!r} of shape {tuple(value.shape)}; "
                                     f"allowed: {tuple(slots[name].parameter.shape)}")
        self._check_groups(state_dict["param_groups"])
        state = state_dict.get("state")
        new = None if state is None else NewState(self._buckets, self._index_of(), state)
        self.synchronize()
        with torch.no_grad():
            for name, value in (given or {}).items():
                slots[name].parameter.copy_(value)
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update({key: value for key, value in saved.items() if key != "params"})
        self._steps = int(state_dict.get("steps", new.steps if new is not None else 0))
        if new is None:
            self.assign_parameters()
        else:
            self._write(new)

    def _write(self, new: NewState) -> None:
        handles = []
        if self._client.rank == 0:
            with torch.no_grad():
                for slot in self._slots():
                    slot.pack_parameter()
        for turn in new.writes(self._client):
            for bucket, assign in turn:
                if self._client.rank == 0:
                    handles.append(assign())
                if self._consistency == "sync":
                    handles.append(self._client.end_step(bucket.table))
        for handle in handles:
            handle.wait()
        if self._consistency != "sync":
            self._all_reduce.wait_for_all()
        self.pull_parameters()

    def share_groups(self, send: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Takes the param groups' values and the steps of one worker, which `send` returns.

        broadcast_optimizer_state() calls it. The servers have the state already; the model gets
        their parameters.
        """
        groups = [{key: value for key, value in group.items() if key != "params"}
                  for group in self.param_groups]
        found = send({"param_groups": groups, "steps": self._steps})
        self._check_groups(found["param_groups"])
        for group, saved in zip(self.param_groups, found["param_groups"]):
            group.update(saved)
        self._steps = int(found["steps"])
        self.synchronize()
        self.pull_parameters()
