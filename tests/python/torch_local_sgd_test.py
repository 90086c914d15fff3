"""DiLoCo and LocalSGD: a run that is saved and resumed, and rounds with too few workers."""
import multiprocessing
import os
import signal

import pytest

torch = pytest.importorskip("torch")
import verbena  # noqa: E402: after the check
import verbena.torch  # noqa: E402: after the check
from torch_support import unique  # noqa: E402

STEPS = 30


def make():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def train(net, inner, first, last):
    for step in range(first, last):
        data = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        inner.zero_grad()
        net(data).square().mean().backward()
        inner.step()


def diloco(client, net, inner, name, **options):
    return verbena.torch.DiLoCo([net[0], net[2]], inner, "nesterov", 10, fragment_sync_delay=2,
                                fragment_update_alpha=0.25, client=client, name=name, rate=0.7,
                                parameters={"momentum": 0.9}, **options)


def local_sgd(client, net, inner, name, **options):
    return verbena.torch.LocalSGD(net, inner, 10, client=client, name=name, **options)


KINDS = {"diloco": diloco, "local_sgd": local_sgd}


@pytest.mark.parametrize("kind", [diloco, local_sgd])
@pytest.mark.parametrize("step", [0, 4, 10, 11, 17])
def test_resumed_equals_uninterrupted(client, kind, step):
    """Also with an exchange in flight (steps 10, 11 of DiLoCo)."""
    whole, inner = make()
    with kind(client, whole, inner, unique("whole")):
        train(whole, inner, 0, STEPS)
    first, inner = make()
    name = unique("resumed")
    with kind(client, first, inner, name) as exchange:
        train(first, inner, 0, step)
        saved = exchange.state_dict()
    net, inner = make()
    with kind(client, net, inner, name, resume=True) as exchange:
        exchange.load_state_dict(saved)
        train(net, inner, step, STEPS)
    for found, exact in zip(net.parameters(), whole.parameters()):
        assert torch.equal(found, exact)


def test_a_state_of_other_fragments_is_refused(client):
    net, inner = make()
    saved = diloco(client, net, inner, unique("a")).state_dict()
    with pytest.raises(ValueError, match="other fragments"):
        local_sgd(client, net, inner, unique("b")).load_state_dict(saved)


def test_too_few_workers(client):
    net, inner = make()
    with local_sgd(client, net, inner, unique("few"), min_workers=2, grace=0.2):
        train(net, inner, 0, 9)
        before = [p.detach().clone() for p in net.parameters()]
        with pytest.raises(verbena.torch.QuorumError, match="has 1 workers and min_workers is 2"):
            train(net, inner, 9, 10)
    assert not all(torch.equal(p, q) for p, q in zip(before, net.parameters()))


def work(cluster, job, rank, last, results):
    """A worker whose batches depend on its rank; the one with `last` is killed after that step."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=2) as client:
        net, inner = make()
        with local_sgd(client, net, inner, job, grace=60):
            train(net, inner, 1000 * rank, 1000 * rank + (last or STEPS))
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
        results.put([p.detach().tolist() for p in net.parameters()])


def work_in_part(cluster, job, rank, kind, first, last, path):
    """One of two workers that trains steps first to last, of which the state is in files."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job=job, rank=rank, expected_workers=2) as client:
        net, inner = make()
        with KINDS[kind](client, net, inner, job, resume=first > 0) as exchange:
            if first > 0:
                exchange.load_state_dict(torch.load(f"{path}-{rank}"))
            train(net, inner, 1000 * rank + first, 1000 * rank + last)
            torch.save(exchange.state_dict(), f"{path}-{rank}")


def run_two(cluster, job, *arguments):
    """Runs work_in_part() in two new processes."""
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work_in_part, args=(cluster, job, rank, *arguments))
               for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


@pytest.mark.parametrize("kind", ["diloco", "local_sgd"])
def test_two_workers_resume_in_new_processes(cluster, tmp_path, kind):
    """Of DiLoCo after step 11 with an exchange in flight, and after step 17."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_two(cluster.address, unique("whole"), kind, 0, STEPS, whole)
    job = unique("parts")
    for first, last in ((0, 11), (11, 17), (17, STEPS)):
        run_two(cluster.address, job, kind, first, last, parts)
    for rank in range(2):
        exact, found = (torch.load(f"{path}-{rank}") for path in (whole, parts))
        assert found["steps"] == exact["steps"] == STEPS
        for mine, other in zip(found["fragments"], exact["fragments"]):
            for a, b in zip(mine, other):
                assert torch.equal(a["exchanged"], b["exchanged"])
                assert all(torch.equal(p, q) for p, q in zip(a["parameters"], b["parameters"]))


def test_rounds_after_a_kill_have_the_mean_of_the_others():
    """Rank 1 is killed after step 15: the round of step 10 has two members, later ones have one."""
    nets = [make() for _ in range(2)]
    for rank, (net, inner) in enumerate(nets):
        train(net, inner, 1000 * rank, 1000 * rank + 10)
    with torch.no_grad():
        for p, q in zip(nets[0][0].parameters(), nets[1][0].parameters()):
            p.copy_((p + q) / 2)
    train(*nets[0], 10, STEPS)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    with verbena.local_cluster(options=("--lease-ms", "1000")) as cluster:
        job = unique("killed")
        workers = [spawn.Process(target=work, args=(cluster.address, job, rank, last, results))
                   for rank, last in enumerate((None, 15))]
        for worker in workers:
            worker.start()
        found = results.get(timeout=120)
        for worker in workers:
            worker.join()
    assert [worker.exitcode for worker in workers] == [0, -signal.SIGKILL]
    for value, exact in zip(found, nets[0][0].parameters()):
        assert torch.allclose(torch.tensor(value), exact, atol=1e-5)
