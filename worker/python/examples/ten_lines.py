"""Trains one table for ten steps, on a cluster that it starts."""
import verbena

with verbena.local_cluster() as cluster, verbena.connect(cluster, job="example") as client:
    table = client.table("weights", shape=(1000,), optimizer="sgd", rate=0.1)
    gradient, weights = client.empty(table.shape), client.empty(table.shape)
    for step in range(10):
        gradient[:] = weights - 1
        client.push_pull(table, gradient, weights).wait()
    print(f"weights[0] = {weights[0]:.4f} after 10 steps")
