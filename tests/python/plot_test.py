"""verbena-plot: a log of verbena-train becomes an image; errors name the file and the line."""
import json
import os
import re
import shutil
import subprocess

import pytest

import verbena.plot

pytest.importorskip("matplotlib")


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def progress(step, seconds, **members):
    return {"event": "progress", "step": step, "seconds": seconds, "loss": 1 / step, "samples_per_s": 100.0 * step,
            "bytes_pushed": 1000 * step, "bytes_pulled": 2000 * step, **members}


RUN = {"event": "run", "job": "job", "model": "fm", "optimizer": "adam", "consistency": "ssp", "workers": 2}
VALIDATION = {"event": "validation", "step": 2, "auc": 0.75}


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_a_run_has_a_panel_for_each_kind_of_measure():
    figure = verbena.plot.figure([RUN, progress(1, 0.5), progress(2, 1.0), VALIDATION])
    assert titles(figure) == ["loss", "validation", "throughput", "traffic"]
    loss, validation, _, traffic = figure.axes[:4]
    assert list(loss.lines[0].get_ydata()) == [1, 0.5]
    assert list(validation.lines[0].get_ydata()) == [0.75]
    assert [line.get_ydata()[0] for line in traffic.lines] == [0.002, 0.004]  # MB/s
    assert figure.get_suptitle() if hasattr(figure, "get_suptitle") else figure._suptitle


def test_staleness_and_load_by_shard_are_drawn_where_they_are_known():
    shards = [{"interval_s": 1, "servers": [{"name": "a", "shards": [
        {"shard": 0, "rates": {"cpu": 0.25}}, {"shard": 1, "rates": None}]}]}]
    figure = verbena.plot.figure([progress(1, 1, staleness=3)], shards)
    assert titles(figure)[-2:] == ["staleness", "load by shard"]
    assert list(figure.axes[4].lines[0].get_ydata()) == [0.25]


def test_the_last_run_of_a_log_is_drawn(tmp_path):
    log = write(tmp_path / "log", [RUN, progress(1, 1), RUN, progress(5, 1), progress(6, 2)])
    assert [len(run) for run in verbena.plot.runs_of(verbena.plot.read_lines(log))] == [2, 3]
    assert verbena.plot.main([log, "-o", str(tmp_path / "run.png")]) == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    path = tmp_path / "log"
    path.write_text(json.dumps(progress(1, 1)) + '\n{"event": "prog')
    assert len(verbena.plot.read_lines(str(path))) == 1


@pytest.mark.parametrize("content, message", [
    ("{}\nnot json\n", "log:2: not JSON"), ("[1]\n", "log:1: not a JSON object"),
    ("", "log: the file has no line yet"), ('{"a": 1}\n', "no line has an `event` of a run"),
    ("\xff\n", "log:1: not"), ('{"event": "run"}\n', "log: the run has no progress yet")])
def test_errors_name_the_file(tmp_path, capsys, content, message):
    path = tmp_path / "log"
    path.write_text(content)
    assert verbena.plot.main([str(path), "-o", str(tmp_path / "run.png")]) == 1
    assert re.search(re.escape(message), capsys.readouterr().err)
    assert not (tmp_path / "run.png").exists()


def test_a_log_of_verbena_train_is_drawn(tmp_path):
    train = os.path.join(os.path.dirname(shutil.which(os.environ["VERBENA_VERBENAD"])), "verbena-train")
    data = tmp_path / "data"
    data.write_text("".join(f"{i % 2} {i % 2 + 1}:1\n" for i in range(400)))
    log = str(tmp_path / "log")
    subprocess.run([train, "--local", "--format", "libsvm", "--data", data, "--test", data, "--steps", "100",
                    "--validate-every", "20", "--log", log], check=True, capture_output=True, timeout=120)
    assert titles(verbena.plot.figure(verbena.plot.read_lines(log)))[:2] == ["loss", "validation"]
    assert verbena.plot.main([log, "-o", str(tmp_path / "run.svg")]) == 0


@pytest.mark.parametrize("name", ["run", "run.", "run.foo", ".png"])
def test_an_output_without_a_format_writes_nothing(tmp_path, capsys, name):
    log = tmp_path / "log"
    log.write_text(json.dumps(progress(1, 1)) + "\n")
    assert verbena.plot.main([str(log), "-o", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert f"--output {tmp_path / name}: its suffix names no format; allowed: " in error and ".png" in error
    assert os.listdir(tmp_path) == ["log"]
