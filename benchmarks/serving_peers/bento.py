"""A run's agent behind BentoML: `RUN=... python -m bentoml serve bento:Act --port PORT`, in this folder."""

import os

import bentoml

import rlplat


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Act:
    def __init__(self) -> None:
        self.agent = rlplat.load(os.environ["RUN"])

    @bentoml.api(route="/v1/act")
    async def act(self, obs: list[float]) -> dict[str, int]:
        return {"action": int(self.agent.act(obs))}
