"""PyTorch on Verbena: optimizers, embeddings and a DDP hook. For PyTorch 1.13 and later.

    import verbena
    import verbena.torch

    with verbena.connect(cluster, job="demo", expected_workers=2) as client:
        optimizer = verbena.torch.DistributedOptimizer(
            model.named_parameters(), torch.optim.AdamW(model.parameters(), lr=1e-3), client=client)

docs/pytorch.md is the guide.
"""
import torch

from .broadcast import broadcast_optimizer_state, broadcast_parameters
from .embedding import Embedding, EmbeddingBag, EmbeddingOptimizer, prefetch_batches
from .exports import load_export, save_import
from .local_sgd import DiLoCo, LocalSGD, QuorumError
from .meter import Communication
from .optimizer import DistributedOptimizer

__all__ = ["Communication", "DiLoCo", "DistributedOptimizer", "Embedding", "EmbeddingBag",
           "EmbeddingOptimizer", "LocalSGD", "QuorumError", "broadcast_optimizer_state",
           "broadcast_parameters", "load_export", "prefetch_batches", "save_import"]

if torch.distributed.is_available():
    from .ddp import DDPState, ddp_comm_hook

    __all__ += ["DDPState", "ddp_comm_hook"]
