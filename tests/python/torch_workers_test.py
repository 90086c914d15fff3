"""Two and four worker processes make the model that one process makes of the same batches."""
import concurrent.futures
import multiprocessing

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
import torch_digits  # noqa: E402: it needs torch
from torch_support import unique  # noqa: E402


@pytest.fixture(scope="module")
def processes():
    """Runs a function in processes of their own: its first arguments are rank and workers."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(4, mp_context=spawn) as pool:
        def run(workers, function, *arguments):
            futures = [pool.submit(function, rank, workers, *arguments) for rank in range(workers)]
            return [future.result(timeout=120) for future in futures]
        yield run


def reference(optimizer):
    net = torch_digits.model().double()
    torch_digits.train(net, torch_digits.OPTIMIZERS[optimizer](net))
    return torch_digits.state(net), torch_digits.accuracy(net)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("optimizer, options", [
    ("sgd", {}), ("adam", {"bucket_bytes": 4096}), ("adamw", {"bucket_bytes": 0}),
    ("adamw", {"deferred": True, "bucket_bytes": 8192}), ("adam", {"overlap": False})])
def test_digits(cluster, processes, workers, optimizer, options):
    exact, accuracy = reference(optimizer)
    found = processes(workers, torch_digits.work, cluster.address, unique("digits"), optimizer,
                      options)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in exact)
    error = torch_digits.error(found[0], exact)
    print(f"{workers} workers, {optimizer} {options}: {error:.2e}, accuracy {accuracy:.4f}")
    assert error < 1e-5
    assert accuracy > 0.9


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_digits_with_a_ddp_hook(cluster, processes, workers, optimizer, tmp_path):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("no gloo")
    exact, _ = reference(optimizer)
    found = processes(workers, torch_digits.work_with_ddp, cluster.address, unique("ddp"), optimizer,
                      str(tmp_path / "rendezvous"))
    error = torch_digits.error(found[0], exact)
    print(f"{workers} workers, ddp, {optimizer}: {error:.2e}")
    assert error < 1e-5


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast(cluster, processes, root):
    (one, exact, state), (other, also, its) = processes(
        2, torch_digits.broadcast, cluster.address, unique("broadcast"), root)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one["1.num_batches_tracked"] == 2 ** 40 + root
    assert exact == also == torch.tensor(1 / 3 + root, dtype=torch.float64)
    torch.manual_seed(root)
    assert torch.equal(one["0.weight"], torch.nn.Linear(3, 4).weight)
    assert state["param_groups"] == its["param_groups"]
    assert state["param_groups"][0]["lr"] == pytest.approx(0.1 * (root + 1))
    assert len(state["state"]) == 4
    for number, values in state["state"].items():
        assert all(torch.equal(value, its["state"][number][name]) for name, value in values.items())
