"""ray.util: ActorPool, Queue, multiprocessing.Pool."""

import ray
from ray.util import ActorPool
from ray.util.multiprocessing import Pool
from ray.util.queue import Empty, Queue


@ray.remote
class Actor:
    def double(self, value):
        return 2 * value


ray.init(num_cpus=2)
pool = ActorPool([Actor.remote(), Actor.remote()])
print(list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3, 4])))
assert sorted(pool.map_unordered(lambda actor, value: actor.double.remote(value), range(5))) == [
    0,
    2,
    4,
    6,
    8,
]
pool.submit(lambda actor, value: actor.double.remote(value), 7)
assert pool.has_next() and pool.get_next() == 14 and not pool.has_next()

queue = Queue(maxsize=2)


@ray.remote
def consume(queue):
    return [queue.get() for _ in range(3)]


consumed = consume.remote(queue)
for item in range(3):
    queue.put(item)
assert ray.get(consumed) == [0, 1, 2] and queue.empty()
try:
    queue.get(block=False)
except Empty:
    print("empty")

with Pool(2) as processes:
    print(processes.map(lambda x: x * x, range(5)), processes.apply(pow, (2, 3)))
    assert list(processes.imap(abs, [-1, -2])) == [1, 2]
    assert processes.starmap(pow, [(2, 2), (3, 2)]) == [4, 9]
    assert processes.apply_async(abs, (-3,)).get(timeout=30) == 3
ray.shutdown()
