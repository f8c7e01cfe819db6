"""What sinks keep of whole runs, read back by their own libraries."""

import io

import numpy as np
from PIL import Image

from rlrun.commands.resume import resume
from rlrun.commands.train import train

SHORT = [
    *("algorithm=dqn", "env=cartpole", "preset=null", "seed=3", "algorithm.lr=0.002", "algorithm.warmup_steps=20"),
    *("evaluation.every=40", "evaluation.episodes=1", "evaluation.max_steps=20", "log.every=20", "device=cpu"),
]


def trained(tmp_path, logger, *more):
    """Return the directory of a run of 100 steps that was stopped after 60 and resumed."""
    run = tmp_path / "run"
    train([*SHORT, f"logger=[{logger}]", "stop.env_steps=60", *more], run_dir=run)
    resume(run, ["stop.env_steps=100"])
    return run


def returns(run):
    from rlrun.runs.progress import values_of

    return values_of(run / "metrics.jsonl", "evaluation/mean_return")


def test_tensorboard_has_config_hparams_and_videos(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import (
        SESSION_END_INFO_TAG,
        SESSION_START_INFO_TAG,
        parse_session_start_info_plugin_data,
    )

    run = trained(tmp_path, "tensorboard", "evaluation.video=true")
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    text = events.Tensors("config/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.strip("`\n") == (run / "config.yaml").read_text().strip()
    data = events.summary_metadata[SESSION_START_INFO_TAG].plugin_data.content
    hparams = parse_session_start_info_plugin_data(data).hparams
    assert (hparams["algorithm.lr"].number_value, hparams["seed"].number_value) == (0.002, 3)
    assert (hparams["algorithm"].string_value, hparams["env.id"].string_value) == ("dqn", "CartPole-v1")
    assert SESSION_END_INFO_TAG in events.summary_metadata
    assert events.Scalars("evaluation/best_return")[-1].value == max(returns(run))
    assert [event.value for event in events.Scalars("evaluation/mean_return")] == returns(run)
    films = events.Images("evaluation/video")
    assert [film.step for film in films] == [40, 80, 100]
    film = Image.open(io.BytesIO(films[0].encoded_image_string))
    assert (film.format, film.width, film.is_animated) == ("GIF", 320, True)
    assert np.asarray(film.convert("RGB")).std() > 1.0
