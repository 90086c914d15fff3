"""scikit-learn's digits for tests: a model, its batches, and training as one of several workers."""
import math
import os
import signal

import torch

import verbena
import verbena.torch

STEPS = 100
BATCH = 64


def data():
    """Pictures in [0, 1] and digits: for training, and held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))
    pictures = torch.from_numpy(digits.data / 16)[order].float()
    labels = torch.from_numpy(digits.target)[order].long()
    return pictures[:1400], labels[:1400], pictures[1400:], labels[1400:]


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32),
                               torch.nn.Tanh(), torch.nn.Linear(32, 10))


def groups(net, rate):
    """Weights and biases, with different rates."""
    return [{"params": [p for name, p in net.named_parameters() if "weight" in name], "lr": rate},
            {"params": [p for name, p in net.named_parameters() if "bias" in name], "lr": 3 * rate}]


OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(groups(net, 0.05), momentum=0.9, weight_decay=1e-3),
    "adam": lambda net: torch.optim.Adam(groups(net, 0.003)),
    "adamw": lambda net: torch.optim.AdamW(groups(net, 0.003), weight_decay=0.1),
}


def train(net, optimizer, rank=0, workers=1, steps=STEPS):
    """Trains on this worker's share of each batch, with a cosine schedule."""
    for loss in train_in_turn(net, optimizer, rank, workers, steps):
        pass
    assert math.isfinite(loss)


def train_in_turn(net, optimizer, rank=0, workers=1, steps=STEPS):
    """train(), step by step: yields the loss of each."""
    pictures, labels, _, _ = data()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    kind = next(net.parameters()).dtype
    share = BATCH // workers
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randint(0, len(labels), (BATCH,), generator=generator)
        mine = batch[rank * share:(rank + 1) * share]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(pictures[mine].to(kind)), labels[mine])
        loss.backward()
        optimizer.step()
        scheduler.step()
        yield float(loss)


def accuracy(net):
    _, _, pictures, labels = data()
    with torch.no_grad():
        kind = next(net.parameters()).dtype
        return (net(pictures.to(kind)).argmax(1) == labels).float().mean().item()


def state(net):
    return {name: value.double() for name, value in net.state_dict().items()}


def error(found, exact):
    """The greatest relative error of a parameter, by the L2 norm."""
    return max(((found[name] - value).norm() / value.norm()).item()
               for name, value in exact.items())


def work(rank, workers, cluster, job, optimizer, options):
    """One of several workers; its model in the end."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
        net = model(seed=rank)  # the parameters of rank 0 count
        served = verbena.torch.DistributedOptimizer(
            net.named_parameters(), OPTIMIZERS[optimizer](net), client=client, name=job,
            model=net if options.pop("deferred", False) else None, **options)
        train(net, served, rank, workers)
        served.synchronize()
        return state(net)


def work_while_a_server_dies(rank, workers, cluster, job, optimizer, server):
    """work(), where rank 0 kills the process `server` in the middle."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers, timeout=60) as client:
        net = model()
        served = verbena.torch.DistributedOptimizer(
            net.named_parameters(), OPTIMIZERS[optimizer](net), client=client, name=job,
            bucket_bytes=4096, chunk_bytes=1024)
        for step, _ in enumerate(train_in_turn(net, served, rank, workers)):
            if rank == 0 and step == STEPS // 3:
                os.kill(server, signal.SIGKILL)
        return state(net)


def work_with_ddp(rank, workers, cluster, job, optimizer, rendezvous):
    """One of several workers, by DistributedDataParallel and a local optimizer."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=workers)
    try:
        with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
            net = torch.nn.parallel.DistributedDataParallel(model(seed=rank), bucket_cap_mb=0.01)
            net.register_comm_hook(verbena.torch.DDPState(client, job), verbena.torch.ddp_comm_hook)
            train(net, OPTIMIZERS[optimizer](net), rank, workers)
            return state(net.module)
    finally:
        dist.destroy_process_group()


def refuse_nan_with_ddp(rank, workers, cluster, job, rendezvous):
    """Returns the error that backward() raises when a gradient of rank 0 is a NaN."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=workers)
    try:
        with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
            net = torch.nn.parallel.DistributedDataParallel(model())
            net.register_comm_hook(verbena.torch.DDPState(client, job), verbena.torch.ddp_comm_hook)
            pictures, labels, _, _ = data()
            loss = torch.nn.functional.cross_entropy(net(pictures), labels)
            try:
                (loss * (float("nan") if rank == 0 else 1)).backward()
            except Exception as error:
                return str(error)
            return ""
    finally:
        dist.destroy_process_group()


def load(rank, workers, cluster, job, root, consistency):
    """One of several workers that load a state_dict() of torch.optim, and get the root's groups."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
        torch.manual_seed(7)
        net = torch.nn.Linear(3, 4)
        local = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(5):
            local.zero_grad()
            net(torch.randn(5, 3)).sum().backward()
            local.step()
        served = verbena.torch.DistributedOptimizer(
            net.named_parameters(), torch.optim.Adam(net.parameters(), lr=0.1), client=client,
            name=job, consistency=consistency)
        served.load_state_dict(local.state_dict())
        served.param_groups[0]["lr"] = 0.1 * (rank + 1)
        with torch.no_grad():
            net.weight.fill_(rank)  # replaced by the servers'
        verbena.torch.broadcast_optimizer_state(served, client=client, root_rank=root, name=job)
        return served.state_dict(), local.state_dict()["state"]


def broadcast(rank, workers, cluster, job, root):
    """One of several workers that call broadcast_parameters() twice; returns its values."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
        torch.manual_seed(rank)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        net[1].num_batches_tracked.fill_(2 ** 40 + rank)
        exact = torch.full((), 1 / 3 + rank, dtype=torch.float64)
        verbena.torch.broadcast_parameters(net.state_dict(), client=client, root_rank=root, name=job)
        verbena.torch.broadcast_parameters([("a", exact)], client=client, root_rank=root, name=job)
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1 * (rank + 1))
        if rank == root:  # the others have no state yet
            net(torch.randn(5, 3)).sum().backward()
            optimizer.step()
        verbena.torch.broadcast_optimizer_state(optimizer, client=client, root_rank=root, name=job)
        return weights, exact, optimizer.state_dict()


def work_locally(rank, workers, cluster, job, options):
    """One of several workers of DiLoCo, or of LocalSGD without outer optimizer; its model."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
        net = model(seed=rank)
        inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
        outer = options.pop("outer", None)
        if outer is None:
            exchange = verbena.torch.LocalSGD(net, inner, client=client, name=job, **options)
        else:
            exchange = verbena.torch.DiLoCo(
                [net[0], net[2:]], inner, torch.optim.SGD(net.parameters(), **outer), client=client,
                name=job, **options)
        with exchange:
            train(net, inner, rank, workers)
        return state(net), client.statistics()


def simulate(workers, outer, sync_every, delay=0, alpha=0.0, kind=torch.float64):
    """Computes the result of all workers of work_locally() in one process, in this type."""
    nets = [model().to(kind) for _ in range(workers)]
    fragments = [[0], [2, 4]] if outer["fragments"] == 2 else [[0, 2, 4]]
    shared = model().to(kind)
    rule = torch.optim.SGD(shared.parameters(), **outer["optimizer"])
    inners = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5) for net in nets]
    distance = sync_every // len(fragments)
    pulled = {}
    steps = [0] * workers

    def of(net, number):
        return [p for layer in fragments[number] for p in net[layer].parameters()]

    def exchange(rank):
        """Called by each worker in turn, after its step."""
        steps[rank] += 1
        if rank + 1 < workers or steps[rank] < distance:
            return
        number = (steps[rank] // distance - 1) % len(fragments)
        with torch.no_grad():
            if steps[rank] % distance == 0:
                rule.zero_grad(set_to_none=True)
                for position, p in enumerate(of(shared, number)):
                    p.grad = sum(p - of(net, number)[position] for net in nets) / workers
                rule.step()
                pulled[number] = [p.clone() for p in of(shared, number)]
            if steps[rank] % distance == delay:
                for net in nets:
                    for p, value in zip(of(net, number), pulled[number]):
                        p.copy_((1 - alpha) * value + alpha * p)

    trainings = [train_in_turn(net, inner, rank, workers)
                 for rank, (net, inner) in enumerate(zip(nets, inners))]
    for _ in range(STEPS):
        for rank, training in enumerate(trainings):
            next(training)
            exchange(rank)
    return [state(net) for net in nets]


def work_locally_and_die(rank, workers, cluster, job):
    """A worker of DiLoCo; rank 1 dies after its second exchange. The accuracy."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=workers) as client:
        net = model()
        inner = torch.optim.AdamW(net.parameters(), lr=0.003)
        with verbena.torch.DiLoCo([net], inner, "nesterov", 10, client=client, name=job, rate=0.7,
                                  parameters={"momentum": 0.5}):
            for step, _ in enumerate(train_in_turn(net, inner, rank, workers)):
                if rank == 1 and step == 25:
                    os.kill(os.getpid(), signal.SIGKILL)
        return accuracy(net)
