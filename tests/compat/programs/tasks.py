"""Tasks of 2017: a tree of products, object ids, wait, several returns, a GPU."""

import time

import numpy as np
import ray

ray.init(num_cpus=2, num_gpus=1, num_workers=2)


@ray.remote
def zeros(shape):
    return np.zeros(shape)


@ray.remote
def dot(a, b):
    return np.dot(a, b)


@ray.remote(num_return_vals=3)
def three():
    return 1, 2, 3


@ray.remote(num_gpus=1)
def on_gpu():
    return ray.get_gpu_ids()


@ray.remote
def fib(n):
    return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))


x, y = zeros.remote((10, 10)), ray.put(np.ones((10, 10)))
assert ray.get(dot.remote(x, y)).sum() == 0
a, b, c = three.remote()
assert ray.get([a, b, c]) == [1, 2, 3]
assert ray.get(three._remote(args=[], num_return_vals=3)) == [1, 2, 3]
ready, waiting = ray.wait([zeros.remote(i) for i in range(4)], 2, timeout=10)
assert len(ready) == 2 and len(waiting) == 2
assert ray.get(on_gpu.remote()) == [0]
assert ray.get(fib.remote(5)) == 5


@ray.remote(max_reconstructions=0)
class Counter:
    def __init__(self):
        self.value = 0

    @ray.method(num_return_vals=2)
    def increment(self):
        self.value += 1
        return self.value, time.time()


counter = Counter.remote()


@ray.remote
def work(counter):
    return ray.get(counter.increment.remote()[0])


print(sorted(ray.get([work.remote(counter) for _ in range(3)])))
try:
    ray.get(dot.remote(1, "a"))
except ray.exceptions.RayTaskError as error:
    print(type(error).__name__)
ray.shutdown()
