"""Ray Serve of today."""

import ray
from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0.5}, max_ongoing_requests=10)
class Doubler:
    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.01)
    async def double(self, values):
        return [2 * value for value in values]

    async def __call__(self, value):
        return await self.double(value)


@serve.deployment
class Ingress:
    def __init__(self, doubler, offset):
        self.doubler, self.offset = doubler, offset

    async def __call__(self, value):
        return await self.doubler.remote(value) + self.offset


ray.init(num_cpus=2)
handle = serve.run(Ingress.bind(Doubler.bind(), 1), route_prefix=None)
print([response.result() for response in [handle.remote(i) for i in range(4)]])
assert serve.get_app_handle("default").remote(5).result() == 11
serve.shutdown()
ray.shutdown()
