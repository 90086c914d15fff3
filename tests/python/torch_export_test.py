"""Exported checkpoints in plain torch.optim, and safetensors files that are damaged."""
import copy
import json
import os
import random
import struct
import subprocess

import pytest

torch = pytest.importorskip("torch")
import verbena.torch  # noqa: E402: after the check
from torch_support import unique  # noqa: E402: it needs torch
from verbena._cluster import find_verbenad  # noqa: E402
from verbena.torch.safetensors import read_safetensors, write_safetensors  # noqa: E402

F = torch.nn.functional

OPTIMIZERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
}


def verbena_command(*arguments):
    program = os.path.join(os.path.dirname(find_verbenad()), "verbena")
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                            timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def digits():
    sklearn = pytest.importorskip("sklearn.datasets")
    found = sklearn.load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def train(net, optimizer, first, steps):
    pictures, labels = digits()
    for step in range(first, first + steps):
        part = slice(step % 17 * 100, step % 17 * 100 + 100)
        optimizer.zero_grad()
        F.cross_entropy(net(pictures[part]), labels[part]).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("form", ["safetensors", "sharded"])
def test_training_goes_on_from_an_export(cluster, connect, tmp_path, name, form):
    job, tables = unique("export"), unique("net")
    client = verbena.connect(cluster, job=job)
    try:
        net = network()
        options = {"name": tables, "bucket_bytes": 8192}
        served = verbena.torch.DistributedOptimizer(
            net.named_parameters(), OPTIMIZERS[name](net.parameters()), client=client, **options)
        train(net, served, 0, 30)
        verbena_command("checkpoint", "save", tmp_path / "saved", "--job", job, "--cluster",
                        cluster.address)
        exported = tmp_path / "model.safetensors"
        verbena_command("checkpoint", "export", tmp_path / "saved", "--optimizer", "--format", form,
                        "--to", exported)
        other = copy.deepcopy(net)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        local = OPTIMIZERS[name](other.parameters())
        parameters, state = verbena.torch.load_export(exported, other.named_parameters(), local,
                                                      **options)
        other.load_state_dict(parameters)
        local.load_state_dict(state)
        train(net, served, 30, 3)
        train(other, local, 30, 3)
        for p, q in zip(net.parameters(), other.parameters()):
            assert p.detach().numpy() == pytest.approx(q.detach().numpy(), abs=1e-6)
        with pytest.raises(ValueError, match="other parameters, param groups or bucket_bytes"):
            verbena.torch.load_export(exported, other.named_parameters(), local, name=tables)
        with pytest.raises(ValueError, match="has no table 'other/0.0'"):
            verbena.torch.load_export(exported, other.named_parameters(), local, name="other")
    finally:
        client.close()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_servers_go_on_from_torch_optim(cluster, connect, tmp_path, name):
    job, tables = unique("import").replace("/", "-"), unique("net")
    other = network()
    local = OPTIMIZERS[name](other.parameters())
    train(other, local, 0, 30)
    options = {"name": tables, "bucket_bytes": 8192}
    plain = tmp_path / "plain"
    verbena.torch.save_import(plain, other.named_parameters(), local, **options)
    verbena_command("checkpoint", "import", plain / "model.safetensors", "--spec",
                    plain / "tables.json", "--job", job, "--to", tmp_path / "imported")
    verbena_command("checkpoint", "restore", tmp_path / "imported", "--cluster", cluster.address)
    client = verbena.connect(cluster, job=job)
    try:
        net = network()
        served = verbena.torch.DistributedOptimizer(
            net.named_parameters(), OPTIMIZERS[name](net.parameters()), client=client, resume=True,
            **options)
        train(net, served, 30, 3)
        train(other, local, 30, 3)
        for p, q in zip(net.parameters(), other.parameters()):
            assert p.detach().numpy() == pytest.approx(q.detach().numpy(), abs=1e-6)
        with pytest.raises(FileExistsError):
            verbena.torch.save_import(plain, other.named_parameters(), local, **options)
    finally:
        client.close()


def test_an_export_of_a_named_optimizer(cluster, client, tmp_path):
    net, tables, job = network(), unique("named"), client.job
    served = verbena.torch.DistributedOptimizer(net.named_parameters(), "momentum", rate=0.05, client=client,
                                                parameters={"momentum": 0.9}, name=tables)
    train(net, served, 0, 5)
    verbena_command("checkpoint", "save", tmp_path / "saved", "--job", job, "--cluster", cluster.address)
    verbena_command("checkpoint", "export", tmp_path / "saved", "--optimizer", "--to", tmp_path / "out.safetensors")
    parameters, state = verbena.torch.load_export(
        tmp_path / "out.safetensors", net.named_parameters(), "momentum", name=tables)
    assert all(torch.equal(parameters[name], value) for name, value in net.named_parameters())
    saved = served.state_dict()["state"]
    assert sorted(state["state"]) == sorted(saved)
    for index, entry in saved.items():
        assert torch.equal(state["state"][index]["momentum_buffer"], entry["momentum_buffer"])
    served.load_state_dict(state)


def example():
    return {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "empty": torch.zeros(0, 4),
            "scalar": torch.tensor(2.5, dtype=torch.float64), "b": torch.tensor([True, False]),
            "h": torch.ones(3, dtype=torch.bfloat16), "n": torch.arange(3)}


def test_files_are_written_and_read(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, example(), counts=frozenset({"n"}))
    found = read_safetensors(path)
    assert found.keys() == example().keys()
    for name, tensor in example().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with pytest.raises(FileExistsError):
        write_safetensors(path, example())
    with pytest.raises(ValueError, match="'c' is torch.complex64"):
        write_safetensors(tmp_path / "y", {"c": torch.zeros(1, dtype=torch.complex64)})


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(begin, end, kind="F32", shape=(1,)):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize("content, problem", [
    (b"", "it has 0 bytes"),
    (file_of({}, length=1 << 60), "its header has 1152921504606846976 bytes"),
    (file_of(b"[" * 100000), "not JSON"),
    (file_of(b"\xff"), "not JSON"),
    (file_of([]), "no JSON object"),
    (file_of(b'{"a": 1, "a": 2}'), "a name is there twice"),
    (file_of({"a": 1}), "other members than dtype"),
    (file_of({"a": tensor(0, 4, "Q7")}, b"1234"), "has the type 'Q7'"),
    (file_of({"a": tensor(0, 4, shape=(True,))}, b"1234"), "has the shape"),
    (file_of({"a": tensor(0, 4, shape=(-1,))}, b"1234"), "has the shape"),
    (file_of({"a": tensor(0, 4, shape=(1 << 62, 1 << 62))}, b"1234"), "as many bytes"),
    (file_of({"a": tensor(0, 8)}, b"1234"), "as many bytes"),
    (file_of({"a": tensor(4, 8)}, b"12345678"), "without gaps"),
    (file_of({"a": tensor(0, 4), "b": tensor(0, 4)}, b"1234"), "without gaps"),
    (file_of({"a": tensor(0, 4)}, b"12345"), "5 bytes of tensors"),
    (file_of({"__metadata__": {"a": 1}}), "__metadata__"),
])
def test_a_damaged_file_is_named(tmp_path, content, problem):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged.safetensors.*" + problem):
        read_safetensors(path)


def test_random_damage_is_an_error_or_tensors(tmp_path):
    """Nothing but ValueError is raised, and no tensor is larger than the file."""
    whole = tmp_path / "whole.safetensors"
    write_safetensors(whole, example())
    good = whole.read_bytes()
    path = tmp_path / "damaged.safetensors"
    draw = random.Random(5)
    refused = 0
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError):
            read_safetensors(path)
    for _ in range(3000):
        content = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            kind = draw.random()
            at = draw.randrange(len(content))
            if kind < 0.6:
                content[at] = draw.choice(b"0123456789[]{}\",:- \x00\xffeFU")
            elif kind < 0.8:
                del content[at:at + draw.randint(1, 9)]
            else:
                content[at:at] = content[draw.randrange(len(content)):][:draw.randint(1, 9)]
        path.write_bytes(content)
        try:
            found = read_safetensors(path)
        except ValueError:
            refused += 1
        else:
            assert sum(t.numel() * t.element_size() for t in found.values()) <= len(content)
    assert refused > 1000
