"""Actors that simulate, and a tree of sums, of Ray's README of 2017."""

import gymnasium as gym
import numpy as np
import ray


@ray.remote
class Simulator:
    def __init__(self):
        self.env = gym.make("CartPole-v1")
        self.env.reset(seed=0)

    def step(self, action):
        return self.env.step(action)


@ray.remote
def add(x, y):
    return x + y


with ray.init():
    simulator = Simulator.remote()
    observations = [simulator.step.remote(i % 2) for i in range(4)]
    assert len(ray.get(observations)[0][0]) == 4
    ids = [ray.put(np.full(3, i)) for i in range(8)]
    while len(ids) > 1:
        ids = [*ids[2:], add.remote(ids[0], ids[1])]
    print(ray.get(ids[0]).tolist())
