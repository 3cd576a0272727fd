"""A FastAPI application behind a deployment. (Its annotations are read by FastAPI, so they are no strings here.)"""

from typing import Any

from fastapi import FastAPI, WebSocket

from rlplat import serve


@serve.deployment
class Api:
    """A FastAPI application, which is made in the replica."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def asgi(self) -> Any:
        app = FastAPI()

        @app.get("/scaled/{x}")
        async def scaled(x: float) -> dict[str, float]:
            return {"scaled": await self.model.remote(x)}

        async def echo(socket: WebSocket) -> None:
            await socket.accept()
            await socket.send_text(await socket.receive_text())

        app.add_api_websocket_route("/echo", echo)
        return app
