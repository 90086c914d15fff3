"""What verbena.torch refuses by name, where silence would lose a model, its state or a row."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
import verbena  # noqa: E402: after the check
import verbena.torch as vt  # noqa: E402: after the check
from torch_support import distributed, unique  # noqa: E402: it needs torch


def network():
    net = torch.nn.Linear(4, 3)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def take_step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


RESUMED = {
    "optimizer": lambda client, net, local, name: vt.DistributedOptimizer(
        net.named_parameters(), local, client=client, name=name, resume=True),
    "name": lambda client, net, local, name: vt.DistributedOptimizer(
        net.named_parameters(), "sgd", rate=0.1, client=client, name=name, resume=True),
    "diloco": lambda client, net, local, name: vt.DiLoCo(
        [net], local, "sgd", 2, rate=1.0, client=client, name=name, resume=True),
    "local_sgd": lambda client, net, local, name: vt.LocalSGD(
        net, local, 2, client=client, name=name, resume=True),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_resume_without_tables_leaves_the_model_alone(client, kind):
    net, local = network()
    before = copy.deepcopy(net.state_dict())
    name = unique("missing")
    with pytest.raises(verbena.NotFoundError, match=f"resume is True and table '{name}/.* does not exist"):
        RESUMED[kind](client, net, local, name)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())
    assert not [table["name"] for table in client.tables() if table["name"].startswith(name)]


@pytest.mark.parametrize("kind", [
    lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    lambda groups: torch.optim.Adam(groups, lr=0.1),
    lambda groups: torch.optim.Adagrad(groups, lr=0.1)])
def test_an_optimizer_with_state_is_refused(client, kind):
    net, _ = network()
    local = kind(net.parameters())
    take_step(net, local)
    loaded = kind(net.parameters())
    loaded.load_state_dict(local.state_dict())
    with pytest.raises(ValueError, match="optimizer has state of earlier steps.*load_state_dict"):
        distributed(client)(net.named_parameters(), loaded)
    served = distributed(client)(net.named_parameters(), kind(net.parameters()))
    served.load_state_dict(local.state_dict())  # the way that the error names
    with pytest.raises(ValueError, match="outer_optimizer has state of earlier steps"):
        vt.DiLoCo([net], network()[1], local, 2, client=client, name=unique("diloco"))


def test_copies_are_refused(client):
    net, local = network()
    bag = vt.EmbeddingBag(3, 2, client=client, name=unique("bag"))
    for made in (distributed(client)(net.named_parameters(), local),
                 vt.DiLoCo([net], local, "sgd", 2, rate=1.0, client=client, name=unique("diloco")),
                 vt.LocalSGD(net, local, 2, client=client, name=unique("local")),
                 vt.EmbeddingOptimizer([bag])):
        for copied in (copy.deepcopy, copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match=f"{type(made).__name__} cannot be pickled or copied"):
                copied(made)


def test_parameters_without_names_are_refused(client):
    net, local = network()
    with pytest.raises(TypeError, match=r"type Parameter; allowed: pairs.*named_parameters\(\)"):
        distributed(client)(net.parameters(), local)


def embedding(client, **options):
    return vt.Embedding(5, 2, client=client, name=unique("rows"), rate=1.0, **options)


def bags(client, **options):
    return vt.EmbeddingBag(5, 2, client=client, name=unique("rows"), rate=1.0, **options)


@pytest.mark.parametrize("make", [embedding, bags])
def test_frozen_rows_stay(client, make):
    module = make(client, padding_idx=1)
    optimizer = vt.EmbeddingOptimizer([module])
    keys = torch.tensor([[0, 1], [2, 0]])
    before = module.weight()
    scale = torch.ones((), requires_grad=True)
    assert module.requires_grad_(False) is module
    assert not module(keys).requires_grad
    (module(keys).sum() * scale).backward()
    optimizer.step()
    assert torch.equal(module.weight(), before)
    assert not before[1].any()
    module.requires_grad_(True)
    module(keys).sum().backward()
    optimizer.step()
    after = module.weight()
    assert not torch.equal(after[0], before[0]) and not torch.equal(after[2], before[2])
    assert torch.equal(after[[1, 3, 4]], before[[1, 3, 4]])


def test_frozen_bags_train_their_weights(client):
    module = bags(client, mode="sum").requires_grad_(False)
    weights = torch.ones(1, 2, requires_grad=True)
    before = module.weight()
    module(torch.tensor([[0, 2]]), per_sample_weights=weights).sum().backward()
    assert weights.grad.flatten().tolist() == pytest.approx(before[[0, 2]].sum(1).tolist())
    vt.EmbeddingOptimizer([module]).step()
    assert torch.equal(module.weight(), before)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_no_bags_are_no_sums(client, mode):
    module = bags(client, mode=mode)
    none = torch.tensor([], dtype=torch.int64)
    local = torch.nn.EmbeddingBag(5, 2, mode=mode)(none, none)
    sums = module(none, none)
    assert sums.shape == local.shape == (0, 2) and sums.requires_grad
    sums.sum().backward()


def test_wrong_arguments_of_embeddings(client):
    with pytest.raises(ValueError, match="Embedding: num_embeddings is -1; allowed: 0 and more"):
        vt.Embedding(-1, 4, client=client, name=unique("rows"))
    with pytest.raises(ValueError, match="Embedding: embedding_dim is 0; allowed: 1 and more"):
        vt.Embedding(4, 0, client=client, name=unique("rows"))
    for make in (embedding, bags):
        with pytest.raises(TypeError, match="input is of type list; allowed: a torch.Tensor"):
            make(client)([[0, 1]])
    with pytest.raises(TypeError, match="offsets is of type list; allowed: a torch.Tensor"):
        bags(client)(torch.tensor([0, 1]), [0])
    for modules in ([torch.nn.Embedding(2, 2)], torch.nn.Embedding(2, 2)):
        with pytest.raises(TypeError, match="modules has a torch.nn.*Embedding; allowed: verbena"):
            vt.EmbeddingOptimizer(modules)
