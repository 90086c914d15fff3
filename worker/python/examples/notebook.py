"""A notebook: trains on a cluster of its own, and plots the loss and the load by shard.

Jupyter, VS Code and Spyder run its cells one by one. As a program it writes run.jsonl and run.png:

    python3 notebook.py
"""
# %% A cluster on this host, and a connection to it
import os
import sys

import matplotlib
import numpy as np

import verbena
import verbena.plot

if "ipykernel" not in sys.modules and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
    matplotlib.use("Agg")  # no display
import matplotlib.pyplot as plt  # noqa: E402: after the choice of its backend

cluster = verbena.local_cluster(servers=2)
client = verbena.connect(cluster, job="notebook")
print(client)

# %% The data: a linear function with noise
generator = np.random.default_rng(0)
truth = generator.normal(size=256).astype(np.float32)
inputs = generator.normal(size=(4096, 256)).astype(np.float32)
targets = inputs @ truth + generator.normal(scale=0.1, size=4096).astype(np.float32)

# %% Training: the servers have the weights and the optimizer
table = client.table("weights", shape=truth.shape, optimizer="adam", rate=0.02)
gradient, weights = client.empty(table.shape), client.pull(table).wait()
BATCH, STEPS = 64, 1500
with verbena.RunLog("run.jsonl", client, model="linear", optimizer="adam", consistency="sync", batch=BATCH,
                    planned_steps=STEPS, interval=0.01, shards=0.2) as log:
    for step in range(STEPS):
        chosen = generator.integers(len(inputs), size=BATCH)
        error = inputs[chosen] @ weights - targets[chosen]
        gradient[:] = 2 * inputs[chosen].T @ error / BATCH
        client.push_pull(table, gradient, weights).wait()
        log.step(float(np.mean(error**2)), samples=BATCH)
print(f"the weights differ from the truth by {np.abs(weights - truth).max():.3f} at most")

# %% The loss, and the load by shard
run = verbena.plot.runs_of(verbena.plot.read_lines("run.jsonl"))[-1]
progress = [event for event in run if event["event"] == "progress"]
plt.semilogy([event["step"] for event in progress], [event["loss"] for event in progress])
plt.xlabel("step")
plt.ylabel("mean squared error")
verbena.plot.figure(run).savefig("run.png")  # as verbena-plot run.jsonl -o run.png
plt.show()

# %% The end
client.close()
cluster.stop()
