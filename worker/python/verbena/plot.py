"""Draws the log of a training run: `verbena-plot RUN.jsonl -o run.png`.

The log is written by `verbena-train --log RUN.jsonl`, by verbena.RunLog, or by any program that appends the same
lines of JSON (docs/reference/json.md): `run`, `progress`, `validation`, `shards` and `result`. With `--shards`, the
output of `verbena shards --watch 1 --json` adds the load of each shard.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure", "main", "read_lines", "runs_of"]

Event = dict[str, Any]

EVENTS = ("run", "progress", "validation", "result", "shards")

MEASURES = {"auc": "AUC", "accuracy": "accuracy", "bits_per_byte": "bits per byte"}


def read_lines(path: str) -> list[Event]:
    """The JSON objects of a file, one a line.

    A last line without its end is still being written and is left out.

    Raises OSError if the file cannot be read, ValueError with the path and the number of the line if one is
    no JSON object.
    """
    objects = []
    with open(path, "rb") as file:
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                break
            try:
                value = json.loads(data)
            except UnicodeDecodeError:
                raise ValueError(f"{path}:{number}: not text in UTF-8") from None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(value, dict):
                shown = data[:60].decode(errors="replace").strip()
                raise ValueError(f"{path}:{number}: not a JSON object: {shown}")
            objects.append(value)
    return objects


def runs_of(events: Sequence[Event]) -> list[list[Event]]:
    """The events of each run of a log, in order: a `run` begins one."""
    runs: list[list[Event]] = []
    for event in events:
        if event.get("event") == "run" or not runs:
            runs.append([])
        runs[-1].append(event)
    return runs


def _value(event: Event, member: str) -> float:
    """A number; NaN, of which nothing is drawn, for `null` and in place of anything else."""
    value = event.get(member)
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


def _curve(axes: "Axes", events: Sequence[Event], x: str, y: str, label: str) -> None:
    points = [(_value(event, x), _value(event, y)) for event in events if x in event and y in event]
    if points:
        axes.plot(*zip(*points), label=label, marker="." if len(points) < 50 else "")


def _finish(axes: "Axes", title: str, x: str, y: str, from_zero: bool = False) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if from_zero:
        axes.set_ylim(bottom=0)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(fontsize="small")


def _rates(progress: Sequence[Event], member: str) -> list[Event]:
    """MB/s between each two lines, from a counter of bytes."""
    points = [(_value(event, "seconds"), _value(event, member)) for event in progress if member in event]
    return [{"seconds": b[0], "rate": (b[1] - a[1]) / (b[0] - a[0]) / 1e6}
            for a, b in zip(points, points[1:]) if b[0] > a[0]]


def _list(event: Any, member: str) -> list[Any]:
    value = event.get(member) if isinstance(event, dict) else None
    return value if isinstance(value, list) else []


def _loads(samples: Sequence[Event]) -> dict[str, list[tuple[float, float]]]:
    """Seconds and share of a processor by shard."""
    loads: dict[str, list[tuple[float, float]]] = {}
    seconds = 0.0
    for sample in samples:
        seconds += _value(sample, "interval_s") if sample.get("interval_s") is not None else 0.0
        for server in _list(sample, "servers"):
            for shard in _list(server, "shards"):
                rates = shard.get("rates") if isinstance(shard, dict) else None
                if isinstance(rates, dict):
                    name = f"{server.get('name', '?')}/{shard.get('shard', '?')}"
                    loads.setdefault(name, []).append((seconds, _value(rates, "cpu")))
    return loads


def _draw_shards(axes: "Axes", loads: dict[str, list[tuple[float, float]]]) -> None:
    for name, points in sorted(loads.items()):
        axes.plot(*zip(*points), label=name)
    _finish(axes, "load by shard", "seconds", "share of a processor", from_zero=True)


def figure(run: Sequence[Event], shards: Optional[Sequence[Event]] = None) -> "Figure":
    """A matplotlib figure of one run; in a notebook it is the last line of a cell.

    run: events of the run, as `runs_of(read_lines(path))[-1]`.
    shards: objects that `verbena shards --watch SECONDS --json` has printed; default: the lines `shards` of
        the run.

    Raises ValueError if the run has neither progress nor validations, or `shards` no load; ImportError
    without matplotlib.
    """
    from matplotlib.figure import Figure

    progress = [event for event in run if event.get("event") == "progress"]
    validations = [event for event in run if event.get("event") == "validation"]
    if not any(event.get("event") in EVENTS for event in run):
        raise ValueError("no line has an `event` of a run; the file is none of `verbena-train --log` or "
                         "verbena.RunLog")
    if not progress and not validations:
        raise ValueError("the run has no progress yet")
    loads = _loads([event for event in run if event.get("event") == "shards"] if shards is None else shards)
    if shards is not None and not loads:
        raise ValueError("no line has the load of a shard; allowed: the output of `verbena shards --watch SECONDS "
                         "--json` with two lines or more")
    measures = [member for member in MEASURES if any(member in event for event in validations)]
    staleness = any("staleness" in event for event in progress)
    panels = 3 + bool(measures) + staleness + bool(loads)
    drawn = Figure(figsize=(12, 3.2 * ((panels + 1) // 2)), layout="constrained")
    axes = iter(drawn.subplots((panels + 1) // 2, 2, squeeze=False).flat)

    panel = next(axes)
    _curve(panel, progress, "step", "loss", "training")
    _finish(panel, "loss", "step", "mean of an example")
    if measures:
        panel = next(axes)
        for member in measures:
            _curve(panel, validations, "step", member, MEASURES[member])
        _finish(panel, "validation", "step", ", ".join(MEASURES[member] for member in measures))
    panel = next(axes)
    _curve(panel, progress, "seconds", "samples_per_s", "samples")
    _finish(panel, "throughput", "seconds", "samples/s", from_zero=True)
    panel = next(axes)
    for member, label in [("bytes_pushed", "pushed"), ("bytes_pulled", "pulled")]:
        _curve(panel, _rates(progress, member), "seconds", "rate", label)
    _finish(panel, "traffic", "seconds", "MB/s", from_zero=True)
    if staleness:
        panel = next(axes)
        _curve(panel, progress, "step", "staleness", "staleness")
        _finish(panel, "staleness", "step", "steps behind, of the slowest worker", from_zero=True)
    if loads:
        _draw_shards(next(axes), loads)
    for panel in axes:
        panel.axis("off")
    first = run[0]
    if first.get("event") == "run":
        names = [first.get(member) for member in ("job", "model", "optimizer", "consistency")]
        drawn.suptitle(", ".join([*(str(name) for name in names if name), f"{first.get('workers', '?')} workers"]))
    return drawn


def make_parser() -> argparse.ArgumentParser:
    """The options of verbena-plot."""
    parser = argparse.ArgumentParser(
        prog="verbena-plot", description="Draws the log of a training run.",
        epilog="Examples: verbena-train --log run.jsonl ...; verbena-plot run.jsonl -o run.png")
    parser.add_argument("log", metavar="RUN.jsonl", help="log of `verbena-train --log` or verbena.RunLog")
    parser.add_argument("-o", "--output", metavar="FILE", required=True,
                        help="image to write; its suffix names the format: .png, .pdf, .svg")
    parser.add_argument("--run", type=int, default=-1, metavar="N",
                        help="number of the run in the log, from 0; -1: the last (default: -1)")
    parser.add_argument("--shards", metavar="FILE", help="output of `verbena shards --watch SECONDS --json`; "
                        "default: lines `shards` of the log")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The program verbena-plot. Returns its exit status: 0, or 1 after an error on standard error."""
    options = make_parser().parse_args(arguments)
    try:
        runs = runs_of(read_lines(options.log))
        if not runs:
            raise ValueError(f"{options.log}: the file has no line yet; was training started with --log?")
        if not -len(runs) <= options.run < len(runs):
            raise ValueError(f"{options.log}: --run {options.run}: the log has {len(runs)} runs")
        shards = read_lines(options.shards) if options.shards else None
        if shards is not None and not _loads(shards):
            raise ValueError(f"--shards {options.shards}: no line has the load of a shard; allowed: the output of "
                             "`verbena shards --watch SECONDS --json` with two lines or more")
        try:
            drawn = figure(runs[options.run], shards)
        except ValueError as error:
            raise ValueError(f"{options.log}: {error}") from None
        suffix = os.path.splitext(options.output)[1][1:].lower()
        formats = drawn.canvas.get_supported_filetypes()
        if suffix not in formats:  # matplotlib would write another file
            raise ValueError(f"--output {options.output}: its suffix names no format; allowed: "
                             f"{', '.join('.' + name for name in sorted(formats))}")
        try:
            drawn.savefig(options.output, dpi=120, format=suffix)
        except ValueError as error:
            raise ValueError(f"--output {options.output}: {error}") from None
    except ImportError as error:
        print(f"verbena-plot: matplotlib cannot be imported: {error}; install it: pip install matplotlib, or "
              "apt-get install python3-matplotlib", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"verbena-plot: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
