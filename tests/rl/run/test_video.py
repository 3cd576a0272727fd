"""Films: the written file decoded again, one frame per step and one more, and reasons where nothing can be filmed."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ConfigError, MissingExtra, UsageError
from rlplat.rl.interfaces import Episode, PolicyOutput
from rlplat.rl.run.evaluation import Evaluator, play_episodes
from rlplat.rl.run.video import (
    FilmedAtari,
    VideoWriter,
    Window,
    do_without_display,
    has_display,
    open_filmed_env,
)
from tests.rl.painted_env import PaintedEnv


def decode(path: Path) -> tuple[list[np.ndarray], float]:
    """Frames uint8[H, W, 3] and frames per second of a video file."""
    import av

    with av.open(str(path)) as container:
        (stream,) = container.streams.video
        rate = float(stream.average_rate)
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)], rate


class List:
    """A film in memory."""

    fps = 0.0

    def __init__(self) -> None:
        self.frames: list[np.ndarray] = []

    def write(self, frame: np.ndarray) -> None:
        self.frames.append(frame)


class BlindEnv(PaintedEnv):
    """Takes no render_mode."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)


class FadedEnv(PaintedEnv):
    def render(self) -> Any:
        return np.zeros((8, 8), np.float32)


class BrokenEnv(PaintedEnv):
    def render(self) -> Any:
        raise RuntimeError("no OpenGL context")


class NullPolicy:
    def __init__(self, num_actions: int = 2) -> None:
        self.rng = np.random.default_rng(0)
        self.num_actions = num_actions

    def set_weights(self, weights: Any) -> None: ...

    def act(self, obs: np.ndarray, *, deterministic: bool = False) -> PolicyOutput:
        zeros = np.zeros(len(obs), np.float32)
        return PolicyOutput(self.rng.integers(0, self.num_actions, len(obs)), zeros, zeros)

    def reset_core(self, ended: np.ndarray) -> None: ...


def play(env: Any, episodes: int = 1, **options: Any) -> list[Episode]:
    played = play_episodes(NullPolicy(), env, episodes, seed=1, **options)  # type: ignore[arg-type]
    env.close()
    return played


PAINTED = "tests.rl.painted_env:PaintedEnv"


def test_every_frame_is_in_the_file_in_order_at_its_size_and_speed(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "play.mp4"
    with VideoWriter(path) as film:
        assert play(open_filmed_env(PAINTED, {}, film), 2) == [Episode(5.0, 5)] * 2
        assert not path.exists(), "it appears when it is whole"
    frames, rate = decode(path)
    assert rate == 12.0 and film.num_frames == len(frames) == 2 * (5 + 1)
    assert frames[0].shape == (32, 46, 3), "odd sizes are made even"
    greys = [int(frame.mean()) for frame in frames]
    # The last frame of each episode is there, the reset after the last one is not.
    expected = [0, 20, 40, 60, 80, 100] * 2
    assert all(abs(grey - light) <= 4 for grey, light in zip(greys, expected, strict=True)), greys
    assert [file.name for file in path.parent.iterdir()] == ["play.mp4"]


def test_a_film_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "play.mp4"
    with pytest.raises(RuntimeError), VideoWriter(path) as film:
        film.write(np.zeros((8, 8, 3), np.uint8))
        raise RuntimeError
    with VideoWriter(path):
        pass  # no frame, no file
    with pytest.raises(UsageError, match=r"a frame of \(8, 9, 3\) after frames of \(8, 8, 3\)"):
        with VideoWriter(path) as film:
            film.write(np.zeros((8, 8, 3), np.uint8))
            film.write(np.zeros((8, 9, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file/play.mp4", "taken.mp4"], ids=["before the first frame", "at its end"])
def test_a_place_that_cannot_be_written_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken.mp4").mkdir()
    with pytest.raises(UsageError, match=f"{tmp_path / place} cannot be written"):
        with VideoWriter(tmp_path / place) as film:
            film.write(np.zeros((8, 8, 3), np.uint8))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken.mp4"]


def test_frames_are_not_kept(tmp_path: Path) -> None:
    """2,000 frames of a megapixel would be 6 GB; the encoder holds a few dozen at most."""
    import tracemalloc

    tracemalloc.start()
    with VideoWriter(tmp_path / "long.mp4") as film:
        for index in range(60):
            film.write(np.full((480, 640, 3), index, np.uint8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 480 * 640 * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "BlindEnv",
            r"unexpected keyword argument 'render_mode'; give it an argument render_mode=None, and a render",
        ),
        ("FadedEnv", r"render\(\) returned float32\[8, 8\], expected uint8\[height, width, 3\]"),
        ("BrokenEnv", r"render\(\) raised RuntimeError: no OpenGL context"),
    ],
)
def test_what_cannot_be_filmed_says_why(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_filmed_env(f"{__name__}:{name}", {}, List())
    assert f"{name} cannot be recorded" in str(caught.value)


def test_without_pyav_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    imported = builtins.__import__

    def without_av(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(MissingExtra, match=r"writing videos needs av: .*scripts/install video$"):
        VideoWriter(tmp_path / "play.mp4")


def test_the_film_of_an_evaluation_and_why_there_is_none(tmp_path: Path) -> None:
    settings = {
        "env": PAINTED,
        "env_kwargs": {"length": 3},
        "vectorization": "auto",
        "seed": 0,
        "num_rollout_workers": 1,
        "num_envs_per_worker": 1,
        "evaluation": {"num_envs": 2, "deterministic": True, "max_episode_steps": 100},
    }
    path = tmp_path / "eval_100.mp4"
    with Evaluator(settings, lambda *_: NullPolicy()) as evaluator:  # type: ignore[arg-type, return-value]
        evaluated = evaluator.run((4, {}), 2, with_video=True)
    assert evaluated.episodes == [Episode(3.0, 3)] * 2 and evaluated.no_video == ""
    path.write_bytes(evaluated.video)
    assert len(decode(path)[0]) == 4
    settings["env"] = f"{__name__}:BlindEnv"
    with Evaluator(settings, lambda *_: NullPolicy()) as evaluator:  # type: ignore[arg-type, return-value]
        evaluated = evaluator.run((4, {}), 2, with_video=True)
    assert evaluated.episodes == [Episode(3.0, 3)] * 2, "the evaluation is not lost"
    assert "cannot be recorded" in evaluated.no_video
    assert evaluated.video == b""


def test_cartpole_renders_without_a_display() -> None:
    film = List()
    (episode,) = play(open_filmed_env("CartPole-v1", {}, film))
    assert len(film.frames) == episode.length + 1 and film.fps == 50.0
    assert all(frame.shape == (400, 600, 3) for frame in film.frames)
    assert np.unique(film.frames[0]).size > 2, "something is drawn"


def block_means(picture: np.ndarray) -> np.ndarray:
    """[210, 160] or [84, 84] -> means of 42 x 4 blocks, which both can be cut into."""
    height, width = picture.shape
    return picture.reshape(42, height // 42, 4, width // 4).mean(axis=(1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("env_kwargs", [{}, {"repeat_action_probability": 0.25}])
def test_an_atari_game_is_filmed_in_full_colour_while_the_policy_sees_what_it_knows(
    env_kwargs: dict[str, Any],
) -> None:
    pytest.importorskip("ale_py")
    film = List()
    env = open_filmed_env("Breakout", env_kwargs, film)
    assert isinstance(env, FilmedAtari) and env.spec.obs.shape == (4, 84, 84)  # type: ignore[union-attr]
    policy = NullPolicy(4)
    seen = env.reset(1)
    num_ends = 0
    for _ in range(600):
        step = env.step(policy.act(seen).actions)  # type: ignore[arg-type]
        # The grey picture that the policy sees is the coloured one, made smaller; also where the game has ended.
        grey = film.frames[-1] @ np.array([0.299, 0.587, 0.114])
        newest = (step.final_obs if step.final_obs is not None else step.obs)[0, -1]  # type: ignore[index]
        assert np.abs(block_means(grey) - block_means(newest)).max() < 6.0
        num_ends += step.final_obs is not None
        seen = step.obs
    env.close()
    assert num_ends > 0 and len(film.frames) == 600 + 1 + num_ends
    assert film.frames[0].shape == (210, 160, 3) and film.fps == 15.0
    assert len({tuple(colour) for colour in film.frames[-1].reshape(-1, 3)}) > 5


def test_a_window_needs_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlplat.rl.run.video.has_display", lambda environ: False)
    with pytest.raises(ConfigError, match="omit --show and a video is written instead"):
        Window("CartPole-v1")


def test_a_window_shows_frames_and_closing_it_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr("rlplat.rl.run.video.has_display", lambda environ: True)
    with Window("CartPole-v1") as window:
        window.fps = 1000.0
        window.write(np.full((210, 160, 3), 77, np.uint8))
        assert pygame.display.get_surface().get_size() == (480, 630), "small pictures are enlarged"
        assert pygame.display.get_surface().get_at((100, 100))[:3] == (77, 77, 77)
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        with pytest.raises(KeyboardInterrupt):
            window.write(np.full((210, 160, 3), 77, np.uint8))
    pygame.quit()


def test_what_a_display_is() -> None:
    assert has_display({"DISPLAY": ":0"}) and has_display({"WAYLAND_DISPLAY": "wayland-0"})
    assert not has_display({}) and not has_display({"DISPLAY": ""})


def test_without_a_display_drawing_is_told_so_but_the_user_has_the_last_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # so that it is set back in the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    monkeypatch.setenv("SDL_AUDIODRIVER", "alsa")
    do_without_display()
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"
    assert (os.environ["MUJOCO_GL"], os.environ["SDL_AUDIODRIVER"]) == ("glfw", "alsa")
