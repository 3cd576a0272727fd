"""Films of an agent: environments that hand out their frames, and where the frames go, one at a time.

    with VideoWriter(Path("play.mp4")) as film:
        env = open_filmed_env("Pong", {}, film)          # a vector environment of one
        play_episodes(policy, env, 1, seed=0)            # every frame is encoded as it comes
        env.close()

Rendering needs no display: frames are arrays (`render_mode="rgb_array"`), SDL and OpenGL are told to do without one.
An episode of n steps is n + 1 frames.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlplat.errors import ConfigError, MissingExtra, RlplatError, UsageError
from rlplat.paths import user_path
from rlplat.rl.envs.atari import PREPROCESSING
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.make import VectorEnv, is_vector_env, make_single_env, make_vector_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.tensors.contract import is_tensor_env
from rlplat.rl.envs.watchdog import Limits
from rlplat.rl.interfaces import Array, Episode, Obs, Step

DEFAULT_FPS = 30.0
ATARI_FPS = 60.0
ATARI_FRAME = (210, 160)
"""Height and width of a console's picture."""
MIN_WINDOW_HEIGHT = 480


class Film(Protocol):
    """Takes frames."""

    fps: float
    """Frames per second; the environment sets it before the first frame."""

    def write(self, frame: Array) -> None:
        """frame: uint8[H, W, 3], RGB; all of one film have the same size."""
        ...


class VideoWriter:
    """An H.264 file that is there when it is whole: `with VideoWriter(path) as film: film.write(frame)`.

    Nothing is written where there was no frame, or where the `with` block raised.
    """

    def __init__(self, path: str | Path | BytesIO) -> None:
        """path: or a buffer, for a film that is to be stored elsewhere."""
        path = path if isinstance(path, BytesIO) else user_path(path)
        try:
            import av
        except ImportError:
            raise MissingExtra("av", "video", "writing videos") from None
        self._open: Any = av.open
        self._frame_from: Any = av.VideoFrame.from_ndarray
        self._codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        self._target = path
        self.fps = DEFAULT_FPS
        self.num_frames = 0
        self._temporary: Any = path.with_name(f".{path.name}.new") if isinstance(path, Path) else None
        self._container: Any = None
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def write(self, frame: Array) -> None:
        if self._container is None:
            with self._writing():
                self._begin(frame.shape)
        if frame.shape != self._shape:
            raise UsageError(
                f"the environment rendered a frame of {frame.shape} after frames of {self._shape}; a video has "
                "one size: let render() always return the same"
            )
        with self._writing():
            self._encode(frame)

    def _encode(self, frame: Array) -> None:
        height, width, _ = frame.shape
        # 4:2:0 halves both axes; odd ones are made even by repeating the last row or column.
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        picture = self._frame_from(np.ascontiguousarray(even), format="rgb24").reformat(format="yuv420p")
        picture.pts = self.num_frames
        picture.time_base = self._stream.codec_context.time_base
        self._container.mux(self._stream.encode(picture))
        self.num_frames += 1

    def _begin(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        rate = Fraction(self.fps).limit_denominator(1000)
        if self._temporary is not None:
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
        self._container = self._open(self._temporary or self._target, "w", format="mp4")
        self._stream = self._container.add_stream(self._codec, rate=rate)
        context = self._stream.codec_context
        context.height, context.width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
        context.pix_fmt = "yuv420p"
        context.time_base = 1 / rate
        context.thread_count = 1  # the CPUs belong to the training
        if self._codec == "libx264":
            context.options = {"preset": "veryfast", "crf": "23"}

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        if self._container is None:
            return
        try:
            with self._writing() if kind is None else suppress(OSError):
                try:
                    if kind is None:
                        self._container.mux(self._stream.encode(None))  # what the encoder still holds
                finally:
                    self._container.close()
                if isinstance(self._target, Path) and kind is None:
                    os.replace(self._temporary, self._target)
        finally:
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full or read-only disk is no fault of the environment, in whose step the frame was drawn."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"{self._target} cannot be written: {error.strerror or error}") from None


class Window:
    """Shows frames as they come, at their speed; closing the window is Ctrl-C."""

    def __init__(self, title: str) -> None:
        if not has_display(os.environ):
            raise ConfigError(
                "there is no display for a window (neither DISPLAY nor WAYLAND_DISPLAY is set): omit --show "
                "and a video is written instead, or connect with ssh -X"
            )
        try:
            import pygame
        except ImportError:
            raise MissingExtra("pygame-ce", "box2d", "showing a window") from None
        self._pygame: Any = pygame
        self.fps = DEFAULT_FPS
        self.num_frames = 0
        self._title = title
        self._screen: Any = None
        self._clock: Any = None

    def write(self, frame: Array) -> None:
        pygame = self._pygame
        if self._screen is None:
            pygame.display.init()
            factor = max(1, -(-MIN_WINDOW_HEIGHT // frame.shape[0]))
            self._screen = pygame.display.set_mode((frame.shape[1] * factor, frame.shape[0] * factor))
            pygame.display.set_caption(self._title)
            self._clock = pygame.time.Clock()
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        picture = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        self._screen.blit(pygame.transform.scale(picture, self._screen.get_size()), (0, 0))
        pygame.display.flip()
        self._clock.tick(self.fps)
        self.num_frames += 1

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._screen is not None:
            self._pygame.display.quit()


def has_display(environ: Mapping[str, str]) -> bool:
    """Whether a window could be opened: Linux has one where a server is named, elsewhere there always is one."""
    return sys.platform != "linux" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def do_without_display() -> None:
    """Tell SDL and OpenGL, unless the user has, how to draw where there is no display."""
    if has_display(os.environ):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    for name, library in (("egl", "libEGL.so.1"), ("osmesa", "libOSMesa.so.8")):
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ.setdefault("MUJOCO_GL", name)
        break


def open_filmed_env(
    env: str,
    env_kwargs: dict[str, Any],
    film: Film,
    copies: Copies = Copies(),  # noqa: B008
    limits: Limits = Limits(),  # noqa: B008
) -> VectorEnv:
    """A vector environment of one whose frames go to `film`; UsageError, with the reason, where it cannot render.

    The policy sees what it was trained on; the film shows what the environment draws.
    """
    if resolve_env(env).kind == "atari":
        return FilmedAtari(env, env_kwargs, film)  # type: ignore[return-value]  # as far as playing needs one
    do_without_display()
    kwargs = {"env": env, "env_kwargs": env_kwargs, "film": film}
    return make_vector_env(
        f"{__name__}:filmed", 1, env_kwargs=kwargs, vectorization="sync", copies=copies, **limits.arguments()
    )


def filmed(env: str, env_kwargs: dict[str, Any], film: Film) -> Filmed:
    """One environment that renders; a factory for `make_vector_env`."""
    source = resolve_env(env)
    try:
        single = make_single_env(source, {**env_kwargs, "render_mode": "rgb_array"})
    except RlplatError as error:
        refused = "unexpected keyword argument 'render_mode'" in str(error)
        fix = "; give it an argument render_mode=None, and a render() that returns the frame" if refused else ""
        raise UsageError(
            f"{source.name} cannot be recorded: with render_mode='rgb_array' it fails: {error}{fix}"
        ) from error
    if is_vector_env(single) or is_tensor_env(single):
        raise UsageError(
            f"{source.name} cannot be recorded: it is a vector environment, and a video is of one environment"
        )
    env_filmed = Filmed(single, source.name, film)
    env_filmed.try_to_render()
    return env_filmed


class Filmed:
    """Passes everything on to the environment, and every frame to the film.

    The first frame of an episode is drawn with its first step: a vector environment also resets after the last
    episode, and that is not part of the film.
    """

    def __init__(self, env: Any, name: str, film: Film) -> None:
        self._env = env
        self._name = name
        self._film = film
        self._is_begun = False
        film.fps = float((getattr(env, "metadata", None) or {}).get("render_fps") or DEFAULT_FPS)

    def try_to_render(self) -> None:
        """Before the first episode: a fault in here is not one of the environment's steps."""
        self._env.reset()
        self._frame()

    def reset(self, **options: Any) -> Any:
        self._is_begun = False
        return self._env.reset(**options)

    def step(self, action: Any) -> Any:
        if not self._is_begun:
            self._film.write(self._frame())
            self._is_begun = True
        result = self._env.step(action)
        self._film.write(self._frame())
        return result

    def _frame(self) -> Array:
        try:
            frame = self._env.render()
        except Exception as error:
            raise UsageError(
                f"{self._name} cannot be recorded: render() raised {type(error).__name__}: {error}; without a display "
                "OpenGL needs libegl1 or libosmesa6 (MUJOCO_GL=egl or osmesa chooses)"
            ) from error
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape[2:] != (3,):
            kind = f"{frame.dtype}{list(frame.shape)}" if isinstance(frame, np.ndarray) else repr(frame)[:60]
            raise UsageError(
                f"{self._name} cannot be recorded: render() returned {kind}, expected uint8[height, width, 3]; give "
                "the environment a render_mode='rgb_array' that returns such frames"
            )
        return frame

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)


class FilmedAtari:
    """Two games in lock step from one seed: one as the policy was trained on it, one in full colour and size.

    ale-py's vector environment renders nothing; a game is decided by its seed and the actions, sticky ones included, so
    that the second one shows what happens in the first.
    """

    num_envs = 1

    def __init__(self, env: str, env_kwargs: dict[str, Any], film: Film) -> None:
        self._seen = make_vector_env(env, 1, env_kwargs=env_kwargs)
        height, width = ATARI_FRAME
        picture = {"grayscale": False, "img_height": height, "img_width": width, "stack_num": 1}
        self._shown = make_vector_env(env, 1, env_kwargs={**env_kwargs, **picture})
        self.spec = self._seen.spec
        self.ended_metrics = self._seen.ended_metrics
        self._film = film
        film.fps = ATARI_FPS / env_kwargs.get("frameskip", PREPROCESSING["frameskip"])
        self._first: Array | None = None

    def reset(self, seed: int | np.random.SeedSequence) -> Obs:
        self._first = _picture(self._shown.reset(seed))
        return self._seen.reset(seed)

    def step(self, actions: Array) -> Step:
        if self._first is not None:
            self._film.write(self._first)
            self._first = None
        step, shown = self._seen.step(actions), self._shown.step(actions)
        assert np.array_equal(step.rewards, shown.rewards), "the recorded game differs from the one that is played"
        if shown.final_obs is not None:  # it has ended, and `obs` belongs to the next one
            self._film.write(_picture(shown.final_obs))
            self._first = _picture(shown.obs)
        else:
            self._film.write(_picture(shown.obs))
        return step

    def pop_episodes(self) -> list[Episode]:
        self._shown.pop_episodes()
        return self._seen.pop_episodes()

    def close(self) -> None:
        self._seen.close()
        self._shown.close()


def _picture(obs: Obs) -> Array:
    """uint8[1, 1, H, W, 3] (environment, stack) -> [H, W, 3]"""
    assert isinstance(obs, np.ndarray)
    picture: Array = obs[0, 0]
    return picture
