"""The examples reach the results that they announce."""
import json
import os
import re
import subprocess
import sys

import pytest

import verbena.plot

torch = pytest.importorskip("torch")

ROOT = os.environ.get("VERBENA_ROOT") or os.path.join(os.path.dirname(__file__), "..", "..")


def run_example(name, *arguments):
    """The output of an example."""
    script = os.path.join(ROOT, "worker", "python", "examples", name)
    ran = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, timeout=250)
    assert ran.returncode == 0, ran.stdout
    print(ran.stdout)
    return ran.stdout


def number(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return float(found.group(1))


def panels(log):
    """Titles of the plot of a log."""
    pytest.importorskip("matplotlib")
    figure = verbena.plot.figure(verbena.plot.read_lines(log))
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_digits(tmp_path):
    pytest.importorskip("sklearn")
    log = str(tmp_path / "run.jsonl")
    output = run_example("digits.py", "--log", log)
    assert panels(log) == ["loss", "validation", "throughput", "traffic", "load by shard"]
    assert number(r"accuracy (\S+) on 357 held-out digits, 2 workers", output) >= 0.96


def test_elastic():
    """Workers come and go within a run, two at a time or one after the other, one of them killed."""
    pytest.importorskip("sklearn")
    output = run_example("elastic.py")
    sizes = re.search(r"^workers of the steps: (.*)$", output, re.MULTILINE).group(1)
    assert re.match(r"2, (3, )?4, 3, (4, )?5, 4\b", sizes), output
    assert number(r"accuracy (\S+) on 357 held-out digits", output) >= 0.95


def test_dlrm(tmp_path):
    """As good as the true probabilities to 0.01, and as with embeddings in the process."""
    build = os.path.dirname(os.environ["VERBENA_VERBENAD"])
    generator = os.path.join(build, "tests", "worker", "criteo_generator")
    data, test = str(tmp_path / "data"), str(tmp_path / "test")
    subprocess.run([generator, "60000", data], check=True, capture_output=True)
    made = subprocess.run([generator, "10000", test, "--first", "60000"], check=True,
                          capture_output=True, text=True)
    best = json.loads(made.stdout)["auc_of_probabilities"]
    log = str(tmp_path / "run.jsonl")
    trained = [number(r"AUC (\S+) on 10000 lines", run_example("dlrm.py", "--data", data, "--test", test, *options))
               for options in (("--log", log), ("--local",))]
    assert panels(log)[:2] == ["loss", "validation"]
    assert trained[0] >= best - 0.01
    assert abs(trained[0] - trained[1]) < 0.005


def test_resnet(tmp_path):
    """The parameters are those of DistributedDataParallel, and every step reports its traffic."""
    pytest.importorskip("torchvision")
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    # --nightly: the sizes of the documentation.
    small = () if os.environ.get("VERBENA_NIGHTLY") else (
        "--pixels", "32", "--batch", "2", "--steps", "2", "--blocks", "2")
    output = run_example("resnet.py", *small)
    assert number(r"after 2 steps: (\S+) of their movement", output) < 0.001
    assert number(r"2 workers, .* ratio (\S+) ", output) > 0
    steps = re.findall(r"^verbena: step .*; communication: hidden (\S+) ms, exposed (\S+) ms, .*; "
                       r"pushed (\d+) bytes, pulled (\d+) bytes$", output, re.MULTILINE)
    assert len(steps) == (4 if small else 48) == len(re.findall("^ddp: step", output, re.MULTILINE))
    model = 11181642 * 4  # bytes of ResNet-18 with 10 classes
    assert sum(int(pushed) for _, _, pushed, _ in steps) == model * len(steps)
    assert sum(int(pulled) for _, _, _, pulled in steps) == model * len(steps)
    assert sum(float(hidden) for hidden, _, _, _ in steps) > 0


def test_diloco():
    """As good as synchronous training, with a part of its bytes."""
    # --nightly: the sizes of the documentation.
    nightly = bool(os.environ.get("VERBENA_NIGHTLY"))
    rounds = 75 if nightly else 12
    output = run_example("diloco.py", "--quantize", "--compare",
                         *(() if nightly else ("--rounds", str(rounds))))
    found = {name: (float(loss), int(pushed), int(pulled)) for name, loss, pushed, pulled in re.findall(
        r"^(\w+): held-out loss (\S+) bits per byte; a worker pushed (\d+) bytes and pulled (\d+) bytes;",
        output, re.MULTILINE)}
    model = 256 * 16 + (12 * 16 + 1) * 192 + (192 + 1) * 256  # elements
    loss, pushed, pulled = found["diloco"]
    other, its_pushed, its_pulled = found["synchronous"]
    assert its_pushed == its_pulled == 4 * model * 20 * rounds
    assert pulled == 4 * model * rounds
    assert model * rounds < pushed < 1.05 * model * rounds  # int8, and the scales
    difference = number(r"difference of the losses: (\S+) %", output)
    assert difference == pytest.approx(100 * (loss / other - 1), abs=0.05)
    assert loss < (0.6 if nightly else 3)  # without training: 8
    if nightly:
        assert abs(difference) <= 2


def test_diloco_goes_on_after_a_kill():
    output = run_example("diloco.py", "--rounds", "5", "--kill", "2")
    assert "round 1 of 5" in output and re.search(r"round 5 of 5, loss \S+ bits per byte, 1 workers", output)


def test_a_worker_joins_diloco():
    output = run_example("diloco.py", "--rounds", "30", "--join", "3")
    assert 3 < number(r"a worker joins with round (\d+)", output) <= 30
    assert re.search(r"round 30 of 30, loss \S+ bits per byte, 3 workers", output)


def test_dlrm_names_a_wrong_line(tmp_path):
    path = tmp_path / "data"
    path.write_text("\t".join(["1"] + ["0"] * 39) + "\n1\t2\n")
    script = os.path.join(ROOT, "worker", "python", "examples", "dlrm.py")
    ran = subprocess.run([sys.executable, script, "--data", path, "--test", path, "--local"], text=True,
                         capture_output=True, timeout=60)
    assert ran.returncode == 1 and f"{path}:2: wanted: a label and 39 fields" in ran.stderr


@pytest.mark.parametrize("name", ["digits", "dlrm", "resnet", "diloco"])
@pytest.mark.parametrize("workers", ["0", "-1"])
def test_examples_refuse_no_workers(name, workers):
    if name == "resnet":
        pytest.importorskip("torchvision")
    script = os.path.join(ROOT, "worker", "python", "examples", f"{name}.py")
    result = subprocess.run([sys.executable, script, f"--workers={workers}"], text=True,
                            capture_output=True, timeout=100, check=False)
    assert result.returncode == 2
    assert f"argument --workers: {workers}; allowed: 1 and more" in result.stderr
