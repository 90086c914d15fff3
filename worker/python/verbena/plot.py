"""Draws the log of a training run: `verbena-plot RUN.jsonl -o run.png`.

The log is written by `verbena-train --log RUN.jsonl`, or by any program that appends the same lines of
JSON (docs/reference/json.md): `run`, `progress`, `validation` and `result`. With `--shards`, the output of
`verbena shards --watch 1 --json` adds the load of each shard.
"""
from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Optional, Sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Event = dict[str, Any]

MEASURES = {"auc": "AUC", "accuracy": "accuracy", "bits_per_byte": "bits per byte"}


def read_lines(path: str) -> list[Event]:
    """The JSON objects of a file, one a line. A last line without its end is still being written and is left
    out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no JSON object; the message has the path and the number of the line.
    """
    objects = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(value, dict):
                raise ValueError(f"{path}:{number}: not a JSON object: {line[:60].strip()}")
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


def _curve(axes: "Axes", events: Sequence[Event], x: str, y: str, label: str, scale: float = 1) -> bool:
    points = [(event[x], event[y] * scale) for event in events if x in event and y in event]
    if points:
        axes.plot(*zip(*points), label=label, marker="." if len(points) < 50 else "")
    return bool(points)


def _finish(axes: "Axes", title: str, x: str, y: str, from_zero: bool = False) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if from_zero:
        axes.set_ylim(bottom=0)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(fontsize="small")


def _rates(progress: Sequence[Event], member: str) -> list[Event]:
    """MB/s between each two lines, from a counter of bytes."""
    return [{"seconds": b["seconds"], "rate": (b[member] - a[member]) / (b["seconds"] - a["seconds"]) / 1e6}
            for a, b in zip(progress, progress[1:]) if b["seconds"] > a["seconds"] and member in a and member in b]


def _draw_shards(axes: "Axes", samples: Sequence[Event]) -> None:
    loads: dict[str, list[tuple[float, float]]] = {}
    seconds = 0.0
    for sample in samples:
        seconds += sample.get("interval_s") or 0
        for server in sample.get("servers", []):
            for shard in server.get("shards", []):
                if shard.get("rates"):
                    loads.setdefault(f"{server['name']}/{shard['shard']}", []).append(
                        (seconds, shard["rates"]["cpu"]))
    for name, points in sorted(loads.items()):
        axes.plot(*zip(*points), label=name)
    _finish(axes, "load by shard", "seconds", "share of a processor", from_zero=True)


def figure(run: Sequence[Event], shards: Optional[Sequence[Event]] = None) -> "Figure":
    """A figure of one run.

    Args:
        run: events of the run, as `runs_of(read_lines(path))[-1]`.
        shards: objects that `verbena shards --watch SECONDS --json` has printed.

    Raises:
        ValueError: the run has neither progress nor validations.
        ImportError: there is no matplotlib.
    """
    from matplotlib.figure import Figure

    progress = [event for event in run if event.get("event") == "progress"]
    validations = [event for event in run if event.get("event") == "validation"]
    if not progress and not validations:
        raise ValueError("the run has no progress yet")
    measures = [member for member in MEASURES if any(member in event for event in validations)]
    staleness = any("staleness" in event for event in progress)
    panels = 3 + bool(measures) + staleness + bool(shards)
    drawn = Figure(figsize=(12, 3.2 * ((panels + 1) // 2)), layout="constrained")
    axes = iter(drawn.subplots((panels + 1) // 2, 2, squeeze=False).flat)

    panel = next(axes)
    _curve(panel, progress, "step", "loss", "training")
    _finish(panel, "loss", "step", "nats an example")
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
    _finish(panel, "traffic of all workers", "seconds", "MB/s", from_zero=True)
    if staleness:
        panel = next(axes)
        _curve(panel, progress, "step", "staleness", "staleness")
        _finish(panel, "staleness", "step", "steps behind the newest push",
                from_zero=True)
    if shards:
        _draw_shards(next(axes), shards)
    for panel in axes:
        panel.axis("off")
    first = run[0]
    if first.get("event") == "run":
        names = [first.get(member) for member in ("job", "model", "optimizer", "consistency")]
        drawn.suptitle(", ".join(str(name) for name in names if name) + f", {first.get('workers', '?')} workers")
    return drawn


def _parse(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="verbena-plot", description="Draws the log of a training run.",
        epilog="Examples: verbena-train --log run.jsonl ...; verbena-plot run.jsonl -o run.png")
    parser.add_argument("log", metavar="RUN.jsonl", help="log of `verbena-train --log`")
    parser.add_argument("-o", "--output", metavar="FILE", required=True,
                        help="image to write; its suffix names the format: .png, .pdf, .svg")
    parser.add_argument("--run", type=int, default=-1, metavar="N",
                        help="number of the run in the log, from 0; -1: the last (default: -1)")
    parser.add_argument("--shards", metavar="FILE", help="output of `verbena shards --watch SECONDS --json`")
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The program verbena-plot. Returns its exit status: 0, or 1 after an error on standard error."""
    options = _parse(arguments)
    try:
        runs = runs_of(read_lines(options.log))
        if not -len(runs) <= options.run < len(runs):
            raise ValueError(f"{options.log}: --run {options.run}: the log has {len(runs)} runs")
        shards = read_lines(options.shards) if options.shards else None
        try:
            drawn = figure(runs[options.run], shards)
        except ValueError as error:
            raise ValueError(f"{options.log}: {error}") from None
        drawn.savefig(options.output, dpi=120)
    except ImportError:
        print("verbena-plot: there is no matplotlib; install it: pip install matplotlib, or apt-get install "
              "python3-matplotlib", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"verbena-plot: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
