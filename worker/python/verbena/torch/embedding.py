"""Embedding and EmbeddingBag: modules of torch.nn whose rows live on the servers."""
from __future__ import annotations

from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple,
                    TypeVar)

import torch
import torch.nn.functional as F

from .._client import Client
from .._core import Handle
from .._errors import Error
from .all_reduce import AllReduce
from .refusals import NotCopied
from .rules import Rule, changes, rule_of, unknown

_Batch = TypeVar("_Batch")

_MOST_KEYS = 4194304  # of one call


class _LookUp(torch.autograd.Function):
    """Rows by key; its backward pushes their gradients."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, module: "_Rows",  # type: ignore[override]
                keys: torch.Tensor) -> torch.Tensor:
        ctx.module = module
        ctx.save_for_backward(keys)  # autograd refuses a batch that was overwritten since
        return module._look_up(keys)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[None, None, None]:
        keys, = ctx.saved_tensors
        ctx.module._push(keys, gradient)
        return None, None, None


class _LookUpBags(torch.autograd.Function):
    """Sums or means of rows by bag; its backward pushes the gradients of the rows."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, module: "_Rows",  # type: ignore[override]
                keys: torch.Tensor, offsets: torch.Tensor, weights: Optional[torch.Tensor],
                mode: str) -> torch.Tensor:
        lengths = torch.diff(offsets, append=offsets.new_tensor([keys.numel()]))
        ctx.module, ctx.lengths, ctx.mode = module, lengths, mode
        ctx.save_for_backward(keys, weights)
        sums = torch.empty(offsets.numel(), module.embedding_dim, dtype=torch.float32)
        module._client.lookup_bags(module._table, keys, offsets, sums, weights=weights,
                                   mode=mode).wait()
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[None, ...]:
        keys, weights = ctx.saved_tensors
        if ctx.mode == "mean":
            gradient = gradient / ctx.lengths.clamp(min=1).unsqueeze(1)
        rows = gradient.repeat_interleave(ctx.lengths, dim=0)
        if weights is not None:
            rows = rows * weights.unsqueeze(1)
        ctx.module._push(keys, rows)
        return None, None, None, None, None, None


class _Rows(torch.nn.Module):
    """The common part of Embedding and EmbeddingBag: a table of rows, and the pushes of a step."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, client: Client, name: str,
                 optimizer: str, rate: float, parameters: Optional[Mapping[str, float]],
                 consistency: str, init: Any, padding_idx: Optional[int], max_norm: Optional[float],
                 scale_grad_by_freq: bool, sparse: bool, options: Dict[str, Any]) -> None:
        super().__init__()
        kind = type(self).__name__
        for argument, value, least in (("num_embeddings", num_embeddings, 0),
                                       ("embedding_dim", embedding_dim, 1)):
            if value < least:
                raise ValueError(f"{kind}: {argument} is {value}; allowed: {least} and more")
        if max_norm is not None:
            raise ValueError(f"{kind}: max_norm is {max_norm}; rows on servers are not renormalised; "
                             "allowed: None")
        if scale_grad_by_freq:
            raise ValueError(f"{kind}: scale_grad_by_freq is True; allowed: False")
        if not sparse:
            raise ValueError(f"{kind}: sparse is False; rows without a gradient get no momentum "
                             "and no decay; allowed: True")
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"{kind}: padding_idx is {padding_idx}; allowed: "
                                 f"{-num_embeddings}..{num_embeddings - 1}")
            padding_idx %= num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self._client = client
        self._optimizer = optimizer
        self._steps = 0
        self._like = torch.empty(0, dtype=torch.float32)  # of the type of the output, which half() and double() change
        # Makes autograd call backward(): the rows themselves are no tensor.
        self._anchor = torch.zeros((), requires_grad=True)
        # The optimizer's values, also a param group of EmbeddingOptimizer; and those at the servers.
        self._group: Dict[str, Any] = {"params": [self._anchor], "lr": rate, **(parameters or {})}
        self._sent = self._rule()
        self._table = client.table(name, dim=embedding_dim, optimizer=self._sent.optimizer,
                                   rate=self._sent.rate, parameters=dict(self._sent.parameters),
                                   consistency=consistency, init=init, **options)
        self._sent = unknown(self._sent)  # an earlier run may have changed the values
        self._all_reduce = AllReduce(client, f"{name}/all")
        self._pushes: List[Handle] = []  # of the open step

    def extra_repr(self) -> str:
        """Part of repr()."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, table={self._table.name!r}"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """half(), to(dtype) and so on: the type of the output; rows on the servers stay float32."""
        super()._apply(fn, *args, **kwargs)
        self._like = fn(self._like)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """False freezes the rows: the output needs no gradient and nothing is pushed; True thaws.

        Call it on this module: that of a parent sees tensors alone, and the rows are none here.
        """
        super().requires_grad_(requires_grad)
        self._anchor.requires_grad_(requires_grad)
        return self

    def _refusal(self, verb: str) -> TypeError:
        return TypeError(f"verbena.torch.{type(self).__name__} cannot be {verb}: its rows are in table "
                         f"{self._table.name!r} on the servers; save state_dict(), or make another "
                         "module with another name=")

    def __deepcopy__(self, memo: Any) -> Any:
        raise self._refusal("copied")

    def __reduce__(self) -> Any:
        raise self._refusal("pickled")

    # ---- rows -----------------------------------------------------------------------------------

    def _keys(self, indices: torch.Tensor) -> torch.Tensor:
        if not isinstance(indices, torch.Tensor):
            raise TypeError(f"input is of type {type(indices).__name__}; allowed: a torch.Tensor of "
                            "int64 or int32")
        if indices.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"input is {indices.dtype}; allowed: torch.int64, torch.int32")
        keys = indices.detach().to("cpu", torch.int64).contiguous().reshape(-1)
        if keys.numel() > _MOST_KEYS:
            raise ValueError(f"input has {keys.numel()} indices; allowed: up to {_MOST_KEYS}")
        if keys.numel() > 0:
            least, greatest = int(keys.min()), int(keys.max())
            if least < 0 or greatest >= self.num_embeddings:
                raise IndexError(f"input has the index {least if least < 0 else greatest}; allowed: "
                                 f"0..{self.num_embeddings - 1}")
        return keys

    def _look_up(self, keys: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(keys.numel(), self.embedding_dim, dtype=torch.float32)
        self._client.lookup(self._table, keys, rows).wait()
        if self.padding_idx is not None:
            rows[keys == self.padding_idx] = 0
        return rows

    def _push(self, keys: torch.Tensor, gradient: torch.Tensor) -> None:
        if self.padding_idx is not None:
            trained = keys != self.padding_idx
            keys, gradient = keys[trained], gradient[trained]
        if not self._pushes:
            rate, parameters = changes(self._sent, self._rule())
            if rate is not None or parameters:
                self._pushes.append(
                    self._client.set_optimizer(self._table, rate=rate, **parameters))
                self._sent = self._rule()
        if keys.numel() > 0:
            self._pushes.append(self._client.push_rows(
                self._table, keys, gradient.detach().to("cpu", torch.float32).contiguous()))

    def _rule(self) -> Rule:
        return rule_of(self._optimizer, self._group, self._steps)

    def _check_step(self) -> None:
        """Checks that the pushes of the step have the values of the group."""
        if self._pushes and self._sent != self._rule():
            raise RuntimeError(
                f"the values of table {self._table.name!r} were changed between backward() and "
                "step(): its gradients were pushed with the old ones. Change them before backward()")

    def _end_step(self) -> List[Handle]:
        """Ends the step; the operations to wait for."""
        handles, self._pushes = self._pushes, []
        self._steps += 1
        if self._table.consistency != "async":
            handles.append(self._client.end_step(self._table))
        return handles

    def prefetch(self, input: torch.Tensor) -> None:
        """Announces the indices of a later forward(), for a table with cold_tier_hot_bytes.

        The servers load their rows from disk meanwhile. It changes no result.
        """
        self._client.prefetch(self._table, self._keys(input))

    def weight(self) -> torch.Tensor:
        """All rows, float32 [num_embeddings, embedding_dim], as the servers have them now."""
        parts = torch.arange(self.num_embeddings).split(_MOST_KEYS)
        with torch.no_grad():
            return torch.cat([self._look_up(part) for part in parts])

    def assign_weight(self, weight: torch.Tensor) -> None:
        """Writes all rows: those of rank 0, [num_embeddings, embedding_dim]; all workers call it.

        The optimizer state of rows that were trained stays. Raises ValueError for another shape, or
        for a padding row that is not zero.
        """
        if tuple(weight.shape) != (self.num_embeddings, self.embedding_dim):
            raise ValueError(f"weight has the shape {tuple(weight.shape)}; allowed: "
                             f"{(self.num_embeddings, self.embedding_dim)}")
        if self.padding_idx is not None and bool(weight[self.padding_idx].any()):
            raise ValueError(f"weight has a row {self.padding_idx} (padding_idx) that is not zero; "
                             "allowed: zeros")
        handles = []
        if self._client.rank == 0:
            rows = weight.detach().to("cpu", torch.float32).contiguous()
            for keys in torch.arange(self.num_embeddings).split(_MOST_KEYS):
                handles.append(self._client.assign_rows(
                    self._table, keys, rows[int(keys[0]):int(keys[-1]) + 1]))
        if self._table.consistency == "sync":
            handles.append(self._client.end_step(self._table))
        for handle in handles:
            handle.wait()
        self._all_reduce.wait_for_all()

    # ---- checkpoints of torch -------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str,
                              local_metadata: Any, strict: bool, missing_keys: List[str],
                              unexpected_keys: List[str], error_msgs: List[str]) -> None:
        key = prefix + "weight"
        if key not in state_dict:
            missing_keys.append(key)
            return
        try:
            self.assign_weight(state_dict[key])
        except ValueError as error:
            error_msgs.append(f"{key}: {error}")


class Embedding(_Rows):
    """torch.nn.Embedding(sparse=True) with rows on the servers.

        items = verbena.torch.Embedding(1_000_000, 64, client=client, name="items",
                                        optimizer="adagrad", rate=0.1)
        optimizer = verbena.torch.EmbeddingOptimizer([items])
        loss(items(indices)).backward()      # pushes the gradients of the rows
        optimizer.step()                     # ends the step

    A row is made by its first gradient; before that it has its initial value, which depends on the
    table's seed and the index only. Rows without a gradient in a step stay as they are. state_dict()
    has all rows as `weight`; load_state_dict() writes those of rank 0, and all workers call it.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: Optional[int] = None,
                 max_norm: Optional[float] = None, scale_grad_by_freq: bool = False,
                 sparse: bool = True, *, client: Client, name: str, optimizer: str = "sgd",
                 rate: float = 0.01, parameters: Optional[Mapping[str, float]] = None,
                 consistency: str = "sync", init: Any = ("normal", 0.0, 1.0), **options: Any) -> None:
        """Creates the table, or opens it.

        num_embeddings, embedding_dim, padding_idx: as in torch.nn. The padding row is zero and is
            not trained.
        max_norm, scale_grad_by_freq: refused. sparse: True only.
        name: of the table.
        optimizer, rate, parameters: "sgd", "adagrad", "sparse_adam", "rowwise_adagrad", ... of the
            servers (docs/optimizers.md), with its learning rate and named parameters. sgd, adagrad
            and sparse_adam compute the same as SGD, Adagrad and SparseAdam of torch.optim.
        consistency, init, options: of Client.table(); the default of `init` is torch.nn's.

        Raises ValueError for arguments that are refused; verbena.AlreadyExistsError if the table
        has other options.
        """
        super().__init__(num_embeddings, embedding_dim, client=client, name=name,
                         optimizer=optimizer, rate=rate, parameters=parameters,
                         consistency=consistency, init=init, padding_idx=padding_idx,
                         max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse,
                         options=options)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows of the indices: float32 [*input.shape, embedding_dim], on the device of `input`.

        After half(), bfloat16() or double() the rows have that type; the servers' stay float32.

        input: int64 or int32 of any shape. Raises IndexError for an index out of range.
        """
        keys = self._keys(input)
        rows: torch.Tensor = _LookUp.apply(self._anchor, self, keys)
        return rows.view(*input.shape, self.embedding_dim).to(input.device, self._like.dtype)


class EmbeddingBag(_Rows):
    """torch.nn.EmbeddingBag with rows on the servers, which also sum them by bag.

    Its gradients are sparse in each mode, also in "max", where torch.nn has dense ones only.
    Otherwise as Embedding.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, max_norm: Optional[float] = None,
                 norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
                 sparse: bool = True, include_last_offset: bool = False,
                 padding_idx: Optional[int] = None, *, client: Client, name: str,
                 optimizer: str = "sgd", rate: float = 0.01,
                 parameters: Optional[Mapping[str, float]] = None, consistency: str = "sync",
                 init: Any = ("normal", 0.0, 1.0), **options: Any) -> None:
        """Creates the table, or opens it; arguments as of torch.nn and Embedding.

        mode: "sum", "mean" or "max". The servers compute sums and means; for "max" all rows of the
            bags are pulled. padding_idx: indices that are left out of the bags.
        """
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"EmbeddingBag: mode is {mode!r}; allowed: 'sum', 'mean', 'max'")
        super().__init__(num_embeddings, embedding_dim, client=client, name=name,
                         optimizer=optimizer, rate=rate, parameters=parameters,
                         consistency=consistency, init=init, padding_idx=padding_idx,
                         max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse,
                         options=options)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def _bags(self, input: torch.Tensor, offsets: Optional[torch.Tensor]) -> torch.Tensor:
        """The first index of each bag, int64 [bags]."""
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets is given and input has two dimensions, which are the "
                                 "bags; allowed: None")
            length = input.shape[1]
            return torch.arange(input.shape[0]) * length
        if input.dim() != 1 or offsets is None or offsets.dim() != 1:
            raise ValueError("input has to have one dimension, with offsets of one dimension, or "
                             "two dimensions")
        starts = offsets.detach().to("cpu", torch.int64)
        count = input.numel()
        if self.include_last_offset:
            if starts.numel() == 0 or int(starts[-1]) != count:
                raise ValueError(f"offsets ends with another number than {count}, the indices of "
                                 "input (include_last_offset)")
            starts = starts[:-1]
        if starts.numel() > 0 and (int(starts[0]) != 0 or int(starts[-1]) > count
                                   or bool((starts.diff() < 0).any())):
            raise ValueError(f"offsets has to begin with 0 and ascend to at most {count}")
        return starts.contiguous()

    def forward(self, input: torch.Tensor, offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        """The sum, mean or maximum of each bag: float32 [bags, embedding_dim]; an empty bag is zero.

        input: int64 or int32; [bags, length], or [indices] with `offsets` [bags].
        per_sample_weights: float32, the shape of `input`; for mode "sum". It may need gradients.
        """
        keys = self._keys(input)
        if offsets is not None and not isinstance(offsets, torch.Tensor):
            raise TypeError(f"offsets is of type {type(offsets).__name__}; allowed: a torch.Tensor")
        if per_sample_weights is not None:
            if self.mode != "sum":
                raise NotImplementedError(f"per_sample_weights with mode {self.mode!r}; allowed: "
                                          "mode 'sum'")
            if per_sample_weights.shape != input.shape:
                raise ValueError(f"per_sample_weights has the shape {tuple(per_sample_weights.shape)}"
                                 f"; allowed: that of input, {tuple(input.shape)}")
        starts = self._bags(input, offsets)
        if starts.numel() == 0:  # no bags, as in torch.nn
            none: torch.Tensor = _LookUp.apply(self._anchor, self, keys[:0])
            return none.to(input.device, self._like.dtype)
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1).cpu()
        if self.padding_idx is not None:
            kept = keys != self.padding_idx
            before = F.pad(kept.cumsum(0), (1, 0))
            starts, keys = before[starts], keys[kept]
            weights = None if weights is None else weights[kept]
        if self.mode == "max" or (weights is not None and weights.requires_grad
                                  and torch.is_grad_enabled()):
            rows = _LookUp.apply(self._anchor, self, keys)
            if weights is not None:  # torch's per_sample_weights fail with frozen rows
                rows = rows * weights.unsqueeze(1)
            bags = F.embedding_bag(torch.arange(keys.numel()), rows, starts, mode=self.mode)
        else:
            weights = None if weights is None else weights.detach().contiguous()
            bags = _LookUpBags.apply(self._anchor, self, keys, starts, weights, self.mode)
        return bags.to(input.device, self._like.dtype)


class EmbeddingOptimizer(NotCopied, torch.optim.Optimizer):
    """Ends the steps of Embedding and EmbeddingBag modules, whose rows the servers train.

    It has a param group for each module, with "lr" and the named parameters of the module's
    optimizer, so that schedulers work. Change them between step() and the next backward().
    """

    def __init__(self, modules: "List[Embedding | EmbeddingBag]") -> None:
        """modules: of one client; each in one EmbeddingOptimizer: of several, each
            step() ends the module's step, and the values of the last one count.

        Raises TypeError for other modules.
        """
        self._modules = [modules] if isinstance(modules, torch.nn.Module) else list(modules)
        for module in self._modules:
            if not isinstance(module, _Rows):
                kind = f"{type(module).__module__}.{type(module).__qualname__}"
                raise TypeError(f"modules has a {kind}; allowed: verbena.torch.Embedding and "
                                "verbena.torch.EmbeddingBag")
        super().__init__([module._group for module in self._modules], {})
        self._share_groups()

    def _share_groups(self) -> None:
        for module, group in zip(self._modules, self.param_groups):
            module._group = group

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Raises RuntimeError if backward() has pushed gradients, which stay in the open step."""
        for module in self._modules:
            if module._pushes:
                raise RuntimeError(
                    f"backward() has pushed gradients of table {module._table.name!r}, and they "
                    "cannot be withdrawn; call step() before zero_grad()")

    def state_dict(self) -> Dict[str, Any]:
        """The param groups' values and the steps of each module; the rest is on the servers."""
        return {**super().state_dict(), "steps": [module._steps for module in self._modules]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state_dict(), also one of another process."""
        super().load_state_dict(dict(state_dict))
        self._share_groups()
        for module, steps in zip(self._modules, state_dict.get("steps", ())):
            module._steps = int(steps)

    def step(self, closure: Any = None) -> Any:
        """Ends the step: waits until the pushed gradients are applied.

        Raises the verbena.Error of a push; RuntimeError if a group's values were changed after a
        push of this step.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for module in self._modules:  # all, before a step ends
            module._check_step()
        handles = [handle for module in self._modules for handle in module._end_step()]
        first: Optional[Error] = None
        for handle in handles:
            try:
                handle.wait()
            except Error as error:
                first = first or error
        if first is not None:
            raise first
        return loss


def prefetch_batches(loader: Iterable[_Batch], announce: Callable[[_Batch], None]
                     ) -> Iterator[_Batch]:
    """Iterates over a DataLoader, one batch ahead: announce(next batch), then the batch itself.

        for indices, labels in prefetch_batches(loader, lambda batch: items.prefetch(batch[0])):

    announce: called with each batch but the first.
    """
    batches = iter(loader)
    try:
        batch = next(batches)
    except StopIteration:
        return
    for following in batches:
        announce(following)
        yield batch
        batch = following
    yield batch
