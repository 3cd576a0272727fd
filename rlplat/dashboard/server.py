"""The dashboard over HTTP: only GET, only files of the package, runs below one directory, and what `rlplat.state` says.

A request with a foreign Host (DNS rebinding) or Origin is refused; beyond loopback a token is needed: the first request
brings it (`/?token=...`), and gets a cookie that is good until this server ends. Nothing on the page comes from
elsewhere (Content-Security-Policy).
"""

from __future__ import annotations

import hmac
import importlib.resources
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rlplat.dashboard.pages import NoSuchRun, Pages
from rlplat.dashboard.serving import Servers
from rlplat.errors import RlplatError
from rlplat.listening import foreign_request

STATIC = Path(str(importlib.resources.files("rlplat.dashboard") / "static"))
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
Call = Callable[[Request], Any]


def make_app(pages: Pages, servers: Servers, *, token: str = "", is_local: bool = False) -> Starlette:
    """The ASGI app. token: "" for none; is_local: only this machine's names for itself are its own."""

    def query(call: Call) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                data = await run_in_threadpool(call, request)
                return Response(msgspec.json.encode(data, enc_hook=str), media_type="application/json")
            except NoSuchRun as error:
                return JSONResponse({"error": str(error)}, status_code=404)
            except (ValueError, RlplatError) as error:
                return JSONResponse({"error": str(error)}, status_code=400)

        return answer

    def run_of(request: Request) -> str:
        return request.query_params.get("run", "")

    def names_of(request: Request) -> list[str] | None:
        text = request.query_params.get("names")
        return text.split(",") if text else None

    def compared(request: Request) -> dict[str, Any]:
        parameters = request.query_params
        runs = [name for name in parameters.getlist("run") if name]
        return pages.compare(runs, parameters.get("metric", "episode_return_mean"), parameters.get("x", "env_steps"))

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"Content-Security-Policy": POLICY})

    async def video(request: Request) -> Response:
        try:
            return FileResponse(pages.video(run_of(request), request.query_params.get("file", "")))
        except NoSuchRun as error:
            return PlainTextResponse(str(error), status_code=404)

    calls: dict[str, Call] = {
        "runs": lambda request: pages.runs(),
        "run": lambda request: pages.run(run_of(request)),
        "metrics": lambda request: pages.metrics(
            run_of(request), request.query_params.get("cursor", ""), names_of(request)
        ),
        "log": lambda request: pages.log(run_of(request), int(request.query_params.get("offset", "0"))),
        "compare": compared,
        "experiment": lambda request: pages.experiment(run_of(request)),
        "cluster": lambda request: clusters(),
        "serving": lambda request: servers.look(),
    }
    routes = [
        Route("/", page),
        Route("/video", video),
        *(Route(f"/api/{name}", query(call)) for name, call in calls.items()),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(Doorkeeper, token=token, is_local=is_local)
    return app


class Doorkeeper:
    """Refuses what does not come from this server's own pages."""

    def __init__(self, app: Any, *, token: str, is_local: bool) -> None:
        self._app, self._token, self._is_local = app, token, is_local
        self._session = secrets.token_urlsafe()
        """The cookie's value: who reads that does not have the token."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        response = self._refusal(request)
        await (self._app if response is None else response)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = (",".join(request.headers.getlist(name)) for name in ("host", "origin"))
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("the dashboard only reads: use GET", status_code=405)
        if self._is_local:
            refused = foreign_request(host, origin)
        else:
            foreign = origin and origin.partition("://")[2] != host
            refused = (403, f"requests of {origin} are refused") if foreign else None
        if refused is not None:
            return PlainTextResponse(refused[1], status_code=refused[0])
        if not self._token:
            return None
        cookie = f"rlplat_{request.scope['server'][1]}"  # browsers send cookies to every port of a host
        given = request.query_params.get("token", "")
        if given and hmac.compare_digest(given.encode(), self._token.encode()):
            answer = RedirectResponse(request.url.path or "/")
            answer.set_cookie(cookie, self._session, httponly=True, samesite="strict")
            return answer
        if hmac.compare_digest(request.cookies.get(cookie, "").encode(), self._session.encode()):
            return None
        return PlainTextResponse("a token is needed: open /?token=... once", status_code=401)


def clusters() -> dict[str, Any]:
    """The clusters of this user on this machine, with what each has and does; `error` where one does not answer."""
    from rlplat import state

    found = []
    for cluster in state.list_clusters():
        session = cluster["session"]
        row: dict[str, Any] = {"cluster": cluster}
        try:
            row["status"] = state.cluster_status(cluster=session)
            row["actors"] = state.list_actors(cluster=session, limit=200)
            row["tasks"] = state.summarize_tasks(cluster=session)
        except RlplatError as error:
            row["error"] = str(error)
        found.append(row)
    return {"clusters": found}


def serve(app: Starlette, listener: socket.socket) -> None:
    """Until SIGINT or SIGTERM, which end it within two seconds."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])
