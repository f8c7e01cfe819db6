"""What a config may import while `trust.limited` holds."""

import sys
from pathlib import Path

import pytest

from rlrun.config.build import Builder, find_target
from rlrun.config.files import read_yaml
from rlrun.config.places import packaged_dir
from rlrun.config.reading import admit_all_resolvers
from rlrun.core.errors import BuildError, ConfigError
from rlrun.env.find import find_target as find_env
from rlrun.security import trust

PART = "class Part:\n    def __init__(self, *positional, **named):\n        self.named = named\n"


@pytest.fixture(autouse=True)
def stand(project, monkeypatch):
    """Stand in an empty folder within another one."""
    (project / "project").mkdir()
    monkeypatch.chdir(project / "project")
    return project


def write(path: Path, text: str = PART) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make_run(path: Path) -> Path:
    write(path / "config.yaml", "")
    write(path / "manifest.json", "{}")
    return path


def refused(target: str, *packages: str, **where) -> str:
    with trust.limited(packages, **where), pytest.raises(BuildError) as caught:
        find_target(target, "here")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def allowed(target: str, *packages: str, **where) -> bool:
    with trust.limited(packages, **where):
        return callable(find_target(target, "here"))


# --- what every run may name


@pytest.mark.parametrize(
    "target",
    [
        *("torch.nn.Linear", "torch.nn.modules.linear.Linear", "torch.nn.functional.relu", "torch.nn.functional.gelu"),
        *("torch.nn.init.orthogonal_", "torch.optim.Adam", "torch.distributions.Normal", "torch.tanh"),
        *("gymnasium.wrappers.TimeLimit", "gymnasium.spaces.Box", "rlrun.env.make", "rlrun.env.spaces_of"),
        *("rlrun.nn.orthogonal_", "rlrun.callbacks.make_sinks", "rlrun.memory.Table", "rlrun.algorithms.dqn.QNetwork"),
    ],
)
def test_parts_of_any_run_are_admitted(target):
    assert allowed(target)


OF_SWEEPS = ("launcher", "sweep")  # groups that no run's config holds


def targets_of(*paths):
    return {node["_target_"] for path in paths for node in objects(read_yaml(path))} - {"???"}


def test_every_packaged_config_is_admitted():
    targets = targets_of(*(path for path in packaged_dir().rglob("*.yaml") if path.parent.name not in OF_SWEEPS))
    assert len(targets) > 40
    with trust.limited():
        assert all(callable(find_target(target, "here")) for target in sorted(targets))


def test_what_starts_processes_is_refused_to_a_run():
    targets = targets_of(*(path for group in OF_SWEEPS for path in packaged_dir().glob(f"{group}/*.yaml")))
    assert len(targets) > 3
    assert all("not trusted" in refused(target) for target in targets)


def objects(node):
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for entry in node.values():
            yield from objects(entry)
    elif isinstance(node, list):
        for entry in node:
            yield from objects(entry)


DANGEROUS = [
    # other packages, and modules that trusted ones have imported
    *("collections.OrderedDict", "functools.partial", "pathlib.Path", "numpy.save", "numpy.ndarray.tofile"),
    *("torch.nn.modules.container.OrderedDict", "gymnasium.wrappers.rendering.os.system"),
    *("rlrun.memory.table.np.memmap", "rlrun.callbacks.transfer.Path", "rlrun.callbacks.transfer.archive.create"),
    *("rlrun.collect.video.np.save", "rlrun.env.find.importlib.import_module", "rlrun.memory.archive.os.remove"),
    # torch beyond its parts
    *("torch.save", "torch.from_file", "torch.compile", "torch.jit.script", "torch.utils.data.DataLoader"),
    *("torch.nn.parallel.parallel_apply", "torch.nn.parallel.data_parallel"),
    *("torch.nn.Module.apply", "torch.nn.utils.skip_init", "torch.nn.functional.handle_torch_function"),
    *("torch.nn.functional.boolean_dispatch", "torch.nn.functional._add_docstr", "torch.nn.modules.module._Hooks"),
    *("torch.optim.Optimizer.register_step_pre_hook", "torch.distributions.register_kl"),
    "psutil.Popen",  # is not installed
    # what reads, writes and deletes
    *(
        "rlrun.memory.files.store",
        "rlrun.memory.files.restore",
        "rlrun.memory.minari.write",
        "rlrun.memory.Table.store",
    ),
    *("rlrun.memory.dataset.read_arrays", "rlrun.memory.sources.table_of", "rlrun.collect.video.VideoRecorder"),
    *("rlrun.collect.video.VideoEncoder", "rlrun.collect.video.Stage", "rlrun.collect.video.Film"),
    *("gymnasium.wrappers.RecordVideo", "gymnasium.wrappers.vector.RecordVideo"),
    *("gymnasium.wrappers.rendering.RecordVideo", "rlrun.env.find.find_target", "rlrun.env.find.lookup"),
    *("rlrun.callbacks.checkpoint.Checkpointer._write", "rlrun.env.make._copy", "rlrun.core.errors.difflib.Differ"),
    *("torch.ops.load_library", "torch.jit.load", "torch.utils.cpp_extension.load", "joblib.load", "gymnasium.make"),
    *("operator.methodcaller", "pathlib.Path.unlink", "rlrun.runs.directory.RunDir.discard"),
    # by way of what trusted modules import
    *("torch.nn.parallel.distributed.os.system", "gymnasium.spaces.box.np.load"),
    "torch.optim.optimizer.functools.partial",
    *("rlrun.memory.dataset.np.load", "rlrun.callbacks.checkpoint.storage.write", "rlrun.memory.minari.shutil.rmtree"),
    *("rlrun.commands.train.os.system", "rlrun.memory.Table.__subclasses__", "rlrun.compile.update.Region"),
    # on the way round by names that python gives everything
    *("torch.nn.Linear.__init__", "torch.nn.Linear.__init__.__globals__", "torch.nn.__loader__.get_data"),
    *("rlrun.memory.__builtins__.eval", "torch.nn.modules.module.__builtins__", "rlrun.nn.__spec__.loader.get_data"),
]
NEVER = [  # one of each kind
    *("posix.system", "subprocess.Popen", "builtins.eval", "importlib.import_module", "runpy.run_module", "pty.spawn"),
    *("multiprocessing.Process", "code.InteractiveInterpreter", "timeit.timeit", "hydra.utils.call"),
    *("pickle.loads", "numpy.load", "torch.load", "torch.hub.load", "yaml.unsafe_load", "logging.config.dictConfig"),
    *("torch.utils.data.dataloader.os.system", "unittest.mock.patch", "rlrun.train"),
    *("rlrun.commands.train.train", "rlrun.config.build.build", "rlrun.checkpointing.sweep", "rlrun.cli.main.main"),
    *("rlrun.loading.policy.frozen", "rlrun.runs.directory.RunDir", "rlrun.security.trust.limited"),
]


@pytest.mark.parametrize("target", DANGEROUS)
def test_what_does_harm_is_not_admitted(target):
    assert "not trusted" in refused(target) or "can never be" in refused(target)


@pytest.mark.parametrize("target", NEVER)
def test_forbidden_names_are_never_admitted(target):
    with pytest.raises(BuildError, match="can never be a `_target_`"):
        find_target(target, "here")
    with pytest.raises(BuildError, match=r"can never be a `_target_`|No module named"):
        find_env(target)
    assert "can never be a `_target_`" in refused(target, target.split(".")[0])


def test_limits_hold_within_their_block():
    with trust.limited(["collections"]):
        assert callable(find_target("collections.OrderedDict", "here"))
        assert "not trusted" in refused("collections.OrderedDict")
        assert callable(find_target("collections.OrderedDict", "here"))
    for target in ("collections.OrderedDict", "rlrun.memory.files.store"):
        assert callable(find_target(target, "here"))


# --- what is named


def test_a_named_package_is_admitted_and_what_it_imports_is_not(stand):
    write(
        stand / "elsewhere" / "mine.py",
        PART + "from pathlib import Path\nimport os\nfrom functools import partial as second\n",
    )
    sys.path.append(str(stand / "elsewhere"))
    assert allowed("mine.Part", "mine")
    assert "--trust mine allows it" in refused("mine.Part")
    assert "not trusted" in refused("mine.Path", "mine")
    assert "can never be" in refused("mine.os.system", "mine")
    assert "not trusted" in refused("mine.second", "mine")
    assert "not trusted" in refused("mine.__loader__.get_data", "mine")


def test_what_is_withheld_can_be_named_by_its_full_name():
    assert "--trust gymnasium.wrappers.RecordVideo allows it" in refused("gymnasium.wrappers.RecordVideo")
    assert allowed("gymnasium.wrappers.RecordVideo", "gymnasium.wrappers.RecordVideo")


@pytest.mark.parametrize("package", ["no_such_module", "", "a b", "../evil", "os;", "mine."])
def test_a_package_that_is_not_there_is_refused(package):
    with pytest.raises(ConfigError, match=f"^--trust {package}: "), trust.limited([package]):
        pass


def test_names_that_the_user_typed_are_admitted():
    typed = {"callbacks.x._target_": "collections.OrderedDict"}
    assert allowed("collections.OrderedDict", typed=typed)
    assert allowed("collections.OrderedDict", typed={"env.id": "collections:Env-v0"})
    assert "not trusted" in refused("collections.Counter", typed=typed)
    assert "not trusted" in refused("collections.OrderedDict", typed={"collections.OrderedDict": 3})
    assert allowed("xml.dom.minidom.Node", typed={"callbacks": {"x": [{"_target_": "xml.dom.minidom.Node"}]}})


@pytest.mark.parametrize(
    "typed",
    [
        {"init.from": "/runs/collections.OrderedDict"},
        {"init.networks": "collections:OrderedDict"},
        {"x": "collections: OrderedDict"},
        {"x": "collections.OrderedDict.*"},
        {"memory.import": "collections:OrderedDict"},
    ],
)
def test_a_name_inside_of_a_text_is_not_admitted(typed):
    assert "not trusted" in refused("collections.OrderedDict", typed=typed)


# --- the user's project


def test_modules_of_the_folder_are_admitted():
    write(Path("mine.py"))
    write(Path("package/__init__.py"))
    write(Path("package/inner/parts.py"))
    write(Path("loose/parts.py"))
    assert allowed("mine.Part")
    assert allowed("package.Part")
    assert allowed("package.inner.parts.Part")
    assert allowed("loose.parts.Part")


def test_a_folder_is_searched_last(monkeypatch):
    write(Path("colorsys.py"))  # of the standard library, and not imported yet
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert "not trusted" in refused("colorsys.rgb_to_hsv")
    write(Path("minari.py"))
    assert "not trusted" in refused("minari.load_dataset")


def test_a_run_is_no_project(stand, monkeypatch):
    make_run(Path("run"))
    write(Path("run/evil.py"))
    write(Path("loose/parts.py"))
    make_run(Path("loose/run"))
    write(Path("loose/run/evil.py"))
    write(Path("loose/run/checkpoints/evil.py"))
    for target in ("run.evil.Part", "loose.run", "loose.run.evil.Part", "loose.run.checkpoints.evil.Part"):
        assert "not trusted" in refused(target)
    Path("lib").symlink_to("run")
    Path("library").symlink_to("loose/run/checkpoints")
    write(Path("sweep/jobs/evil.py"))
    for name in ("sweep.json", "jobs.sqlite"):
        write(Path("sweep", name), "")
    for target in ("lib.evil.Part", "library.evil.Part", "sweep.jobs.evil.Part"):
        assert "not trusted" in refused(target)
    write(Path("runs/deeper/evil.py"))
    assert "not trusted" in refused("runs.deeper.evil.Part")  # a folder without modules
    for folder in ("run", "run/checkpoints"):
        write(stand / "project" / folder / "evil.py")
        monkeypatch.chdir(stand / "project" / folder)
        assert "not trusted" in refused("evil.Part")
        monkeypatch.chdir(stand / "project")


@pytest.mark.parametrize("place", ["", "src"])
def test_what_arrived_with_the_run_is_no_project(place, stand, monkeypatch):
    home = stand / "project" / place
    write(home / "archive" / "helper.py")
    write(home / "archive" / "inner" / "parts.py")
    write(home / "mine.py")
    run = make_run(home / "archive" / "run")
    monkeypatch.syspath_prepend(str(home))  # as an installed src/ is
    for target in ("archive.helper.Part", "archive.inner.parts.Part", "src.archive.helper.Part"):
        assert "not trusted" in refused(target, run=run)
    assert allowed("mine.Part", run=run)


def test_a_module_found_before_the_one_of_the_folder_is_not_meant(stand):
    write(Path("mine.py"))
    write(stand / "elsewhere" / "mine.py")
    sys.path.append(str(stand / "elsewhere"))
    assert "not trusted" in refused("mine.Part")


def test_the_folder_of_the_run_is_searched_for_named_packages_only(stand):
    write(stand / "theirs" / "mine.py")
    write(stand / "theirs" / "more.py")
    theirs = str(stand / "theirs")
    assert refused("mine.Part", project=theirs).endswith(f"stand in its project ({theirs}) or say --trust mine")
    assert theirs not in sys.path
    assert allowed("mine.Part", "mine", project=theirs)
    assert sys.path[-1] == theirs
    assert "not trusted" in refused("more.Part", project=theirs)


@pytest.mark.parametrize("place", [3, None, [], "relative", "/no\nline", "/\x1b[31m", "/nowhere"])
def test_what_a_run_says_of_its_folder_may_be_anything(place):
    message = refused("mine.Part", project=place)
    assert message.isprintable()
    with pytest.raises(ConfigError, match="there is no module 'mine'"), trust.limited(["mine"], project=place):
        pass


# --- beyond imports


def test_what_is_filled_in_names_no_resolver_either():
    box = {"_target_": "rlrun.memory.Column", "_args_": ["$", [], "float32"]}
    with trust.limited(), pytest.raises(BuildError, match=r"oc\.env"):
        Builder({"a": box, "b": "${a.name}{oc.env:HOME}"}).get("b")


# --- allow lists, where a list of what is refused would be open


@pytest.mark.parametrize(
    "target",
    [
        *("sympy.sympify", "numpy.savetxt", "numpy.ctypeslib.load_library", "sqlite3.connect"),
        *("logging.FileHandler", "test.support.script_helper.spawn_python", "rlrun.memory.recorder.Recorder"),
        *("rlrun.export.acting.FileAgent", "rlrun.memory.storage.zeros"),
        *("rlrun.callbacks.checkpoint.retire", "torch.nn.parallel.DataParallel", "torch.nn.utils.parametrize.cached"),
    ],
)
def test_what_no_list_names_is_refused(target):
    assert "not trusted" in refused(target)
    write(Path("mine.py"), f"from {target.rpartition('.')[0]} import {target.rpartition('.')[2]} as Part\n")
    assert "not trusted" in refused("mine.Part")


def test_an_environment_is_admitted_by_where_it_is_defined(monkeypatch):
    import gymnasium

    from rlrun.env.find import spec_of

    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.envs.registration.registry))
    monkeypatch.setattr("rlrun.env.find.registry", gymnasium.envs.registration.registry)
    gymnasium.register("Theirs-v0", entry_point="collections:OrderedDict")
    write(Path("mine.py"))
    gymnasium.register("Mine-v0", entry_point="mine:Part")
    with trust.limited():
        assert spec_of("CartPole-v1").id == "CartPole-v1"
        assert spec_of("Mine-v0").id == "Mine-v0"
        with pytest.raises(BuildError, match="Theirs-v0 comes with the run and is not trusted; --trust collections"):
            spec_of("Theirs-v0")
    for overrides in ({"packages": ["collections"]}, {"typed": {"env.id": "Theirs-v0"}}):
        with trust.limited(**overrides):
            assert spec_of("Theirs-v0").id == "Theirs-v0"


def test_a_place_is_trusted_by_its_path(stand):
    data = stand / "data"
    data.mkdir()
    run = make_run(stand / "run")
    refusal = pytest.raises(ConfigError, match="lies outside of the run that names it; --trust")
    with trust.limited(run=run):
        trust.admit_place("in", run / "in", "memory.import")
        for path in (data, run, run / ".." / "data", stand / "running"):
            with refusal:
                trust.admit_place(str(path), path, "memory.directory")
    for overrides in (
        {"packages": [f"{data}/"]},
        {"packages": ["../data"]},
        {"typed": {"memory.directory": str(data)}},
    ):
        with trust.limited(run=run, **overrides):
            trust.admit_place(str(data), data, "memory.directory")
            with refusal:
                trust.admit_place(str(data / "x"), data / "x", "memory.directory")
    with trust.limited(["minari:a/b-v0"]):
        trust.admit_place("minari:a/b-v0", None, "memory.import")


def test_the_home_is_outside_inside_of_a_run(stand, monkeypatch):
    run = make_run(stand / "run")
    monkeypatch.chdir(run)
    monkeypatch.setenv("HOME", str(stand))
    with trust.limited(run=run), pytest.raises(ConfigError, match="lies outside of the run"):
        trust.admit_place("~/secret.zip", Path("~/secret.zip"), "loader.dataset")


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "a ${oc.env:HOME}", ["${oc.env:HOME}"], {"b": "${oc.env:HOME}"}])
def test_a_resolver_that_is_typed_is_admitted_in_that_text_only(value):
    with trust.limited(typed={"x": value}):
        admit_all_resolvers({"y": value})
        with pytest.raises(ConfigError, match=r"--trust oc\.env allows it"):
            admit_all_resolvers({"y": "${oc.env:HOME} and more"})
