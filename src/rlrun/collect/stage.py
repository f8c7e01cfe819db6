"""Where frozen agents play: lanes side by side, and one whose pictures are taken."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from rlrun.collect.agents import Agent
from rlrun.collect.evaluate import Evaluation, evaluate, stage, undisturbed
from rlrun.collect.video import Recorder, screen
from rlrun.env import Env
from rlrun.errors import RequestError
from rlrun.files import reason


class Film(NamedTuple):
    """Which episodes are filmed, and where to.

    folder: for one file an episode; form: mp4 or gif; episodes: how many of the first ones, None = all.
    """

    folder: Path
    form: str = "mp4"
    episodes: int | None = None


class Stage:
    """Lanes on which any number of agents play the same episodes; made once, to be closed.

    Args:
        env: what to copy; its own lanes are never touched.
        episodes: how many an agent plays; episode i starts with `reset(seed=seed + i)`.
        seed: of the first episode, and of what agents draw.
        max_steps: of an episode.
        explore: act as in training rather than at best.
        film: what is filmed; those episodes are played one after the other.

    Raises:
        RequestError: the environment cannot be drawn, or the folder cannot be made.
    """

    def __init__(
        self,
        env: Env,
        *,
        episodes: int,
        seed: int = 0,
        max_steps: int | None = None,
        explore: bool = False,
        film: Film | None = None,
    ) -> None:
        self.seed = seed
        self.film = film
        self._play = partial(evaluate, max_steps=max_steps, explore=explore)
        most = 0 if film is None else episodes if film.episodes is None else film.episodes
        self._filmed = min(episodes, most)
        self._rest = episodes - self._filmed
        self._closing = ExitStack()
        self._screen: Env | None = None
        self._lanes: Env | None = None
        with self._closing:
            if film is not None and self._filmed:
                _make(film.folder)
                self._screen = screen("--video", env)
                self._closing.callback(self._screen.close)
            if self._rest:
                self._lanes = stage(env, self._rest)
                self._closing.callback(self._lanes.close)
            self._closing = self._closing.pop_all()

    def play(self, agent: Agent, folder: str = "") -> tuple[Evaluation, list[Path]]:
        """Let an agent play all episodes; the generators of the process stay as they are.

        Args:
            agent: what acts.
            folder: for its videos, beneath that of the film.

        Returns:
            What came out, and the videos.

        Raises:
            RlrunError: a picture could not be drawn or written.
        """
        with undisturbed():
            torch.manual_seed(self.seed)
            evaluation: Evaluation = Evaluation([], [], [])
            videos: list[Path] = []
            if self._screen is not None and self.film is not None:
                evaluation, videos = self._filming(agent, self._screen, self.film, folder)
            if self._lanes is not None:
                rest = self._play(self._lanes, agent, episodes=self._rest, seed=self.seed + self._filmed)
                evaluation = evaluation.then(rest)
        return evaluation, videos

    def _filming(self, agent: Agent, screen: Env, film: Film, folder: str) -> tuple[Evaluation, list[Path]]:
        place = film.folder / folder
        recorder = Recorder(screen, lambda now: place / f"episode_{now.episode:03d}_seed_{now.seed}.{film.form}")
        with recorder:
            evaluation = self._play(screen, agent, episodes=self._filmed, seed=self.seed, watch=recorder)
        return evaluation, recorder.paths

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"--video {folder} cannot be made: {reason(error)}") from error
