"""RunLog writes the lines that verbena-plot draws; a disk that is full does not end training."""
import copy
import json
import logging
import os
import pickle
import re
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

import verbena
import verbena.plot

EXAMPLES = os.path.join(os.environ["VERBENA_ROOT"], "worker", "python", "examples")


def lines(path):
    return verbena.plot.read_lines(str(path))


def train(client, log, consistency="sync", steps=4, **options):
    table = client.table(f"weights-{consistency}", shape=1000, consistency=consistency, rate=0.1, **options)
    gradient, weights = client.empty(table.shape), client.empty(table.shape)
    for step in range(steps):
        client.push_pull(table, gradient, weights).wait()
        if consistency == "ssp":
            client.end_step(table).wait()
        log.step(1 / (step + 1), samples=10)


def test_a_run_has_its_beginning_progress_validation_and_result(client, tmp_path):
    path = tmp_path / "run.jsonl"
    with verbena.RunLog(path, client, model="linear", optimizer="sgd", batch=10, interval=0) as log:
        train(client, log)
        log.validation(examples=7, accuracy=0.5)
    events = lines(path)
    assert [event["event"] for event in events] == ["run", *["progress"] * 4, "validation", "result"]
    assert events[0]["job"] == client.job and events[0]["batch"] == 10
    last = events[4]
    assert (last["step"], last["samples"], last["loss"]) == (4, 40, 0.25)
    assert last["bytes_pushed"] == last["bytes_pulled"] == 4 * 4000
    assert events[6]["steps"] == 4 and events[6]["samples"] == 40
    with pytest.raises(ValueError, match="run.jsonl is closed"):
        log.step(1.0)
    log.close()
    pytest.importorskip("matplotlib")
    assert verbena.plot.main([str(path), "-o", str(tmp_path / "run.png")]) == 0


def test_an_ssp_table_has_a_staleness(client, tmp_path):
    with verbena.RunLog(tmp_path / "log", client, interval=0) as log:
        train(client, log, "ssp", staleness=3)
    assert [event["staleness"] for event in lines(tmp_path / "log") if event["event"] == "progress"] == [0] * 4


def test_a_run_that_failed_has_no_result(tmp_path):
    with pytest.raises(KeyError):
        with verbena.RunLog(tmp_path / "log") as log:
            log.step(float("nan"), samples=1)
            raise KeyError
    events = lines(tmp_path / "log")
    assert [event["event"] for event in events] == ["run", "progress"] and events[1]["loss"] is None


def test_a_path_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot open the log.*nowhere/log"):
        verbena.RunLog(tmp_path / "nowhere" / "log")
    with pytest.raises(ValueError, match="shards needs a client"):
        verbena.RunLog(tmp_path / "log", shards=1)


def test_a_full_disk_ends_the_log_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "verbena"):
        with verbena.RunLog("/dev/full", interval=0) as log:
            for _ in range(3):
                log.step(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "RunLog /dev/full: cannot write: No space left on device; the log ends here, and training continues"]


def test_a_line_for_which_there_was_no_room_is_removed(tmp_path):
    path = tmp_path / "log"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = verbena.RunLog(path, interval=0)
    log.step(1.0)
    whole = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
    try:
        log.step(1.0)
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole


def test_the_notebook(tmp_path):
    pytest.importorskip("matplotlib")
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    ran = subprocess.run([sys.executable, os.path.join(EXAMPLES, "notebook.py")], cwd=tmp_path, env=environment,
                         text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250)
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    events = lines(tmp_path / "run.jsonl")
    loads = [event for event in events if event["event"] == "shards"]
    assert {server["name"] for server in loads[-1]["servers"]} == {"server-0", "server-1"}
    assert events[-1]["event"] == "result" and events[-1]["steps"] == 1500
    difference = re.search(r"the weights differ from the truth by ([0-9.]+) at most", ran.stdout)
    assert difference and float(difference[1]) < 0.05, ran.stdout


def test_a_result_does_not_count_the_wait_for_the_load_of_the_shards(client, tmp_path):
    with verbena.RunLog(tmp_path / "log", client, shards=1) as log:
        log.step(1.0, samples=10)
        begin = time.monotonic()
    waited = time.monotonic() - begin
    events = lines(tmp_path / "log")
    assert any(event["event"] == "shards" for event in events)
    assert events[-1]["seconds"] < waited


def test_clients_tables_and_handles_describe_themselves_and_are_not_pickled(client, cluster):
    assert repr(client) == f"<verbena.Client {cluster.address} job '{client.job}' rank 0>"
    table = client.table("shown", shape=8)
    assert repr(table) == "<verbena.Table 'shown' shape=(8,) sync>"
    push = client.push_pull(table, np.zeros(8, np.float32), np.zeros(8, np.float32))
    push.wait()
    assert repr(push) == "<verbena.Handle completed>"
    for value, named in [(client, "verbena.Client"), (table, "verbena.Table 'shown'"), (push, "verbena.Handle"),
                         (cluster, "verbena.LocalCluster")]:
        for refused in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=f"{named}.* cannot be pickled or copied"):
                refused(value)
    client.close()
    assert repr(client).endswith("closed>")
    assert pickle.loads(pickle.dumps(verbena.NotFoundError("gone"))).code == "NOT_FOUND"


def test_the_environment_names_the_cluster(cluster, monkeypatch):
    monkeypatch.setenv("VERBENA_CLUSTER", cluster.address)
    with verbena.connect(job="environment") as client:
        assert client.cluster == cluster.address
    monkeypatch.setenv("VERBENA_TOKEN_FILE", "/nowhere/token")
    with pytest.raises(verbena.Error, match="/nowhere/token"):
        verbena.connect(job="environment")
    with verbena.connect(cluster, job="environment"):  # without tokens
        pass


def test_only_public_names_are_listed():
    assert [name for name in dir(verbena) if name.startswith("_") and not name.endswith("__")] == []
    assert set(verbena.__all__) <= set(dir(verbena))


def test_a_deep_copy_and_a_pickle_of_an_embedding_are_refused(client):
    torch = pytest.importorskip("torch")
    import verbena.torch
    model = torch.nn.Sequential(verbena.torch.Embedding(10, 4, client=client, name="rows"))
    for refused in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="Embedding cannot be .*table 'rows'"):
            refused(model)
    indices = torch.tensor([1, 2])
    assert model(indices).dtype == torch.float32
    assert model.half()(indices).dtype == torch.float16 and model.to("cpu").double()(indices).dtype == torch.float64
    assert model.state_dict()["0.weight"].dtype == torch.float32


def test_a_distributed_optimizer_logs_its_steps(client, tmp_path):
    torch = pytest.importorskip("torch")
    import verbena.torch
    model = torch.nn.Linear(4, 1)
    with verbena.RunLog(tmp_path / "log", client, interval=0) as log:
        optimizer = verbena.torch.DistributedOptimizer(
            model.named_parameters(), torch.optim.SGD(model.parameters(), lr=0.1), client=client, log=log)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            log.add(loss, 2)
            optimizer.step()
    run, first, second, result = map(json.dumps, lines(tmp_path / "log"))
    assert '"optimizer": "sgd", "consistency": "sync"' in run
    assert json.loads(second)["samples"] == 4 and json.loads(second)["loss"] < json.loads(first)["loss"]
    assert json.loads(result)["steps"] == 2
