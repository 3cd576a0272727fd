"""The parameter server of 2018: workers that never end."""

import time

import numpy as np
import ray


@ray.remote
class ParameterServer:
    def __init__(self, keys, values):
        values = [value.copy() for value in values]
        self.weights = dict(zip(keys, values, strict=True))

    def push(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            self.weights[key] += value

    def pull(self, keys):
        return [self.weights[key] for key in keys]


@ray.remote
def worker_task(ps):
    while True:
        keys = ["key1", "key2", "key3"]
        values = ray.get(ps.pull.remote(keys))
        updates = [np.ones_like(value) for value in values]
        ps.push.remote(keys, updates)
        time.sleep(0.001)


ray.init(num_cpus=2)
keys = ["key1", "key2", "key3"]
ps = ParameterServer.remote(keys, [np.zeros(100_000) for _ in keys])
for _ in range(2):
    worker_task.remote(ps)
while ray.get(ps.pull.remote(["key1"]))[0][0] < 20:
    time.sleep(0.01)
print("updated")
