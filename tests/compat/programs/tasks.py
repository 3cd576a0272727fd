"""Tasks and actors, as the article on Ray of 2018 has them."""

import time

import numpy as np
import rlplat.compat.ray as ray

ray.init(num_cpus=2, include_webui=False)


@ray.remote
def zeros(shape):
    return np.zeros(shape)


@ray.remote
def dot(a, b):
    return np.dot(a, b)


@ray.remote(num_return_vals=2)
def both(x):
    return x, x + 1


a, b = zeros.remote((10, 10)), zeros.remote((10, 10))
assert ray.get(dot.remote(a, b)).sum() == 0
first, second = both.remote(1)
assert ray.get([first, second]) == [1, 2]


@ray.remote
class ParameterServer(object):
    def __init__(self, dim):
        self.params = np.zeros(dim)

    def get_params(self):
        return self.params

    def update_params(self, grad):
        self.params += grad


@ray.remote
def worker(ps):
    while True:
        params = ray.get(ps.get_params.remote())
        grad = np.ones(len(params))
        time.sleep(0.01)
        ps.update_params.remote(grad)


ps = ParameterServer.remote(10)
for _ in range(2):
    worker.remote(ps)
while ray.get(ps.get_params.remote())[0] < 5:
    time.sleep(0.01)

ready, rest = ray.wait([zeros.remote(1), zeros.remote(2)], num_returns=1, timeout=30)
assert len(ready) == 1 and len(rest) == 1
try:
    ray.get(dot.remote(np.zeros(2), np.zeros(3)))
except ray.exceptions.RayTaskError as error:
    assert "shapes" in str(error)
print("success!")
