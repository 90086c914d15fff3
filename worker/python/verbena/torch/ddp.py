"""A communication hook by which DistributedDataParallel averages gradients on the servers."""
# No postponed annotations: DistributedDataParallel compares those of a hook with the types.
import torch
import torch.distributed as dist

from .._client import Client
from .all_reduce import AllReduce
from .futures import torch_future


class DDPState:
    """The state of ddp_comm_hook(): a worker's client and its tables.

    The job has the workers of the process group: expected_workers is its world size.
    """

    def __init__(self, client: Client, name: str = "ddp") -> None:
        """name: prefix of the tables, one for each bucket; the same on all workers."""
        self.means = AllReduce(client, name)


def ddp_comm_hook(state: DDPState, bucket: dist.GradBucket  # type: ignore[name-defined]
                  ) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook(): averages a bucket over the workers.

        model = DistributedDataParallel(net)
        model.register_comm_hook(verbena.torch.DDPState(client), verbena.torch.ddp_comm_hook)

    The gradients are summed by the servers in rank order, in float32. The optimizer stays local.
    A NaN or infinity is refused: backward() raises.

    Raises TypeError for gradients that are not float32.
    """
    gradients = bucket.buffer()
    if gradients.dtype != torch.float32:
        raise TypeError(f"the gradients of DDP bucket {bucket.index()} are {gradients.dtype}; "
                        "allowed: torch.float32")
    handle = state.means.start(str(bucket.index()), gradients)
    return torch_future(handle, gradients.neg_)
