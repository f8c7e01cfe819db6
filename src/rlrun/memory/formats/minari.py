"""Datasets of Minari in and out (extra `minari`); nothing is downloaded.

Minari stores actions and observations of the environment. A table stores policy actions in [-1, 1], choices from 0,
and the parts of a Tuple by number. The bounds and starts of the spaces convert one to the other.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlrun.core.errors import MissingExtra, RequestError, RlrunError, SpaceError
from rlrun.core.files import reason
from rlrun.core.spaces import Box, Composite, Space, Spaces, map_tree, take_rows
from rlrun.core.typing import Tree
from rlrun.env.spaces import action_writer, batch_reader, from_gymnasium, policy_actions, to_gymnasium
from rlrun.memory.table.episodes import Episode, Stored
from rlrun.memory.table.table import Table

T = TypeVar("T")
PLACE, METADATA = "a Minari dataset", "metadata.json"


def _minari() -> Any:
    try:
        import minari
        from minari.dataset._storages import hdf5_storage  # noqa: F401 - what most datasets need
    except ImportError as error:
        raise MissingExtra(PLACE, error.name or "h5py", "minari") from error
    return minari


def read(dataset: str) -> list[Episode]:
    """Return the episodes of a dataset: the id of one on this machine, or a folder.

    Raises:
        MissingExtra: Minari is not installed.
        RequestError: there is no such dataset, or it is damaged.
    """
    return _read(dataset, lambda source: [*_episodes(source)])


def spaces_of(dataset: str) -> Spaces | None:
    """Return the spaces that a dataset names; None where one is of an unsupported kind.

    Raises:
        MissingExtra: Minari is not installed.
        RequestError: there is no such dataset, or it is damaged.
    """

    def read_spaces(source: Any) -> Spaces | None:
        try:
            observation = from_gymnasium(source.observation_space, dataset)
            return Spaces(observation, from_gymnasium(source.action_space, dataset, action=True))
        except SpaceError:
            return None

    return _read(dataset, read_spaces)


def _read(dataset: str, take: Callable[[Any], T]) -> T:
    """Return the result of `take` for a dataset of Minari."""
    minari = _minari()
    folder = Path(dataset).expanduser().absolute()
    places = (folder / "data", folder, Path(minari.storage.get_dataset_path(dataset)) / "data")
    data = next((place for place in places if (place / METADATA).is_file()), None)
    if data is None:
        raise RequestError(
            f"there is no Minari dataset '{dataset}' on this machine, neither by id nor as a folder: "
            f"minari download {dataset}"
        )
    try:
        if not {"observation_space", "action_space"} <= json.loads((data / METADATA).read_text()).keys():
            # Minari would make the environment, by a callable that the file names
            raise ValueError("it does not name its spaces, and no code is run to find them")
        return take(minari.MinariDataset(data))
    except ImportError as error:
        raise MissingExtra(PLACE, error.name or "pyarrow", "minari") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"the Minari dataset '{dataset}' cannot be read: {message}") from error


def _episodes(source: Any) -> Iterator[Episode]:
    observe = batch_reader(source.observation_space)
    for episode in source.iterate_episodes():
        yield _episode(episode, observe, source.action_space)


def _episode(episode: Any, observe: Callable[[Any], Tree], action_space: Any) -> Episode:
    length = len(episode.rewards)
    observation = observe(episode.observations)
    row = {
        "observation": take_rows(observation, slice(length)),
        "action": policy_actions(action_space, episode.actions),
        "reward": np.asarray(episode.rewards, np.float32),
        "terminated": np.asarray(episode.terminations, np.bool_),
        "truncated": np.asarray(episode.truncations, np.bool_),
    }
    return Episode(row, take_rows(observation, length))


def target_of(dataset: str) -> Path:
    """Return the folder for a new dataset, named by an id such as `lab/door-v0`, or by a path.

    Raises:
        MissingExtra: Minari is not installed.
        RequestError: it exists, or the id is invalid.
    """
    minari = _minari()
    if _is_path(dataset):
        folder = Path(dataset).expanduser().absolute()  # Minari fails with relative paths
    else:
        try:
            minari.dataset.minari_dataset.parse_dataset_id(dataset)
        except (ValueError, TypeError):
            raise RequestError(f"'{dataset}' is no Minari id; wanted (NAMESPACE/)NAME-vNUMBER, or a path") from None
        folder = Path(minari.storage.get_dataset_path(dataset))
    if folder.exists():
        raise RequestError(f"{folder} exists; a Minari dataset is never overwritten")
    return folder


def _is_path(dataset: str) -> bool:
    return dataset.startswith((".", "/", "~")) or (os.sep != "/" and os.sep in dataset)


def write(table: Table, dataset: str, spaces: Spaces) -> Path:
    """Write a table as a new dataset; open episodes count as cut off. Images are stored without loss.

    Args:
        table: to write; only the columns of a step are written.
        dataset: an id such as `lab/door-v0`, or a path (beginning with `.` or `/`) that ends in such a name.
        spaces: of the environment, for the bounds of actions.

    Returns:
        The dataset's folder.

    Raises:
        MissingExtra: Minari is not installed.
        RequestError: the dataset exists.
        RlrunError: the disk does not take it.
    """
    minari = _minari()
    folder = target_of(dataset)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        (temporary / "data").mkdir(parents=True)
        _fill(minari, temporary / "data", folder.name if _is_path(dataset) else dataset, table, spaces)
        os.rename(temporary, folder)
    except OSError as error:
        raise RlrunError(f"{folder} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if folder.parent != Path(minari.storage.get_dataset_path()) and not _is_path(dataset):
        with suppress(ValueError):  # it exists already
            minari.namespace.create_namespace(dataset.rpartition("/")[0])
    return folder


def _fill(minari: Any, data: Path, name: str, table: Table, spaces: Spaces) -> None:
    action_space = to_gymnasium(spaces.action)
    environment_action = action_writer(action_space, 1) or (lambda action: action)
    storage = minari.dataset.minari_storage.MinariStorage.new(
        data,
        observation_space=to_gymnasium(spaces.observation),
        action_space=action_space,
        data_format="hdf5",
        jpeg_encoding=False,  # it would lose detail
    )
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})

    def buffers() -> Iterator[Any]:
        for episode in Stored.of(table):
            observations = map_tree(
                lambda rows, last: np.concatenate([rows, last[None]]), episode.row["observation"], episode.last
            )
            yield minari.data_collector.EpisodeBuffer(
                observations=_from_start(spaces.observation, observations),
                actions=environment_action(episode.row["action"]),
                rewards=episode.row["reward"],
                terminations=episode.row["terminated"],
                truncations=episode.row["truncated"],
            )

    storage.update_episodes(buffers())


def _from_start(space: Space, values: Tree) -> Tree:
    """Return observations whose choices count from the space's `start`, in place of 0."""
    if isinstance(space, Composite):
        return {name: _from_start(part, values[name]) for name, part in space.parts.items()}
    return values if isinstance(space, Box) else (values + space.start).astype(space.dtype)
