"""Two and four worker processes make the model that one process makes of the same batches."""
import concurrent.futures
import multiprocessing

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
import verbena  # noqa: E402: after the checks
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


@pytest.mark.parametrize("options", [
    {"consistency": "async"}, {"consistency": "ssp", "staleness": 1, "deferred": True}])
def test_digits_without_steps_in_common(cluster, processes, options):
    for found in processes(2, torch_digits.work, cluster.address, unique("digits"), "adam", options):
        net = torch_digits.model()
        net.load_state_dict(found)
        assert torch_digits.accuracy(net) > 0.8


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_server_dies(processes, optimizer):
    exact, _ = reference(optimizer)
    with verbena.local_cluster(servers=3, replicas=2) as replicated:
        found = processes(2, torch_digits.work_while_a_server_dies, replicated.address,
                          unique("digits"), optimizer, replicated.servers[1].pid)
    assert torch_digits.error(found[0], exact) < 1e-5


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


def test_a_ddp_hook_refuses_nan(cluster, processes, tmp_path):
    raised = processes(2, torch_digits.refuse_nan_with_ddp, cluster.address, unique("ddp"),
                       str(tmp_path / "rendezvous"))
    assert "NaN" in raised[0]


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


@pytest.mark.parametrize("consistency", ["sync", "async"])
def test_state_is_loaded_and_groups_are_shared(cluster, processes, consistency):
    (one, expected), (other, _) = processes(
        2, torch_digits.load, cluster.address, unique("load"), 1, consistency)
    assert one["param_groups"] == other["param_groups"]
    assert one["param_groups"][0]["lr"] == pytest.approx(0.2)
    assert one["steps"] == 5
    assert torch.equal(one["parameters"]["weight"], other["parameters"]["weight"])
    assert not torch.equal(one["parameters"]["weight"], torch.zeros(4, 3))
    for index, entry in expected.items():
        for name, value in entry.items():
            assert torch.equal(one["state"][index][name], value)
            assert torch.equal(other["state"][index][name], value)


@pytest.mark.parametrize("delay, alpha", [(0, 0.0), (2, 0.0), (3, 0.25)])
def test_diloco(cluster, processes, delay, alpha):
    outer = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
    found = processes(2, torch_digits.work_locally, cluster.address, unique("diloco"),
                      {"outer": outer, "sync_every": 10, "fragment_sync_delay": delay,
                       "fragment_update_alpha": alpha})
    for kind, bound in ((torch.float64, 1e-5), (torch.float32, 1e-6)):
        exact = torch_digits.simulate(2, {"fragments": 2, "optimizer": outer}, 10, delay, alpha, kind)
        errors = [torch_digits.error(one, other) for (one, _), other in zip(found, exact)]
        print(f"DiLoCo, delay {delay}, alpha {alpha}, {kind}: {max(errors):.2e}")
        assert max(errors) < bound


@pytest.mark.parametrize("quantize", [False, True])
def test_local_sgd(cluster, processes, quantize):
    found = processes(4, torch_digits.work_locally, cluster.address, unique("local"),
                      {"sync_every": 20, "should_quantize": quantize})
    exact = torch_digits.simulate(4, {"fragments": 1, "optimizer": {"lr": 1.0}}, 20)
    error = torch_digits.error(found[0][0], exact[0])
    pushed = found[0][1]["bytes_pushed"]
    print(f"LocalSGD, int8 {quantize}: {error:.2e}, {pushed} bytes pushed")
    assert error < (2e-2 if quantize else 1e-5)
    elements = sum(value.numel() for value in exact[0].values())
    assert pushed < 6 * elements * (2 if quantize else 5)


def test_a_broadcast_without_a_root(client):
    value = torch.ones(3)
    with pytest.raises(ValueError, match="no worker has it"):
        verbena.torch.broadcast_parameters([("a", value)], client=client, root_rank=1,
                                           name=unique("broadcast"))
    assert torch.equal(value, torch.ones(3))


def test_a_worker_of_diloco_dies(cluster):
    spawn = multiprocessing.get_context("spawn")
    job = unique("diloco")
    dies = spawn.Process(target=torch_digits.work_locally_and_die, args=(1, 2, cluster.address, job))
    dies.start()
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        found = pool.submit(torch_digits.work_locally_and_die, 0, 2, cluster.address, job).result(120)
    dies.join()
    print(f"accuracy {found:.4f}")
    assert dies.exitcode < 0
    assert found > 0.85
