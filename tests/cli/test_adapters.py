"""LoRA adapters on the command line: pulled, listed, shown, planned and applied; never offered as models."""

import shutil

import pytest

from tests.cli.transcripts import transcript
from tests.kit import NOT_PRINTABLE, Spec, build
from tests.kit.adapters import adapter, pairs, peft_folder, write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "hub", "hf_cache", "own_models")]

SPEC = Spec(mute=NOT_PRINTABLE, name="kit")
BASE = {"general.base_model.0.repo_url": "https://huggingface.co/kit/base"}


@pytest.fixture
def own_models(home):
    (home / "data" / "models").mkdir(parents=True)


def written(path, **how):
    write_adapter(path, pairs(SPEC, **how), SPEC.shape, overrides=BASE)
    return path


def repo(world, name, kind=""):
    """Let the hub have a repository: of a GGUF file, of PEFT's, or of neither."""
    files = {"README.md": b"Nothing."}
    if kind == "french":
        files |= {
            f"lora-{weights}.gguf": written(world.folder / f"{weights}.gguf", rank=rank)
            for weights, rank in (("F16", 4), ("F32", 8))
        }
    elif kind == "peft":
        folder = peft_folder(world.folder / "peft", pairs(SPEC), SPEC.shape)
        files |= {path.name: path for path in folder.iterdir()}
    world.fixture("hub").add(name, files)


def french(world):
    written(world.folder / "home/data/models/french.gguf")


def polish(world):
    peft_folder(world.folder / "home/data/models/polish", pairs(SPEC, seed=9), SPEC.shape)


def dora(world):
    peft_folder(world.folder / "home/data/models/dora", pairs(SPEC), SPEC.shape, use_dora=True)


def wrong(world):
    other = Spec(shape=SPEC.shape.sized(arch="qwen3"))
    shutil.copy(adapter(world.folder, other, "wrong"), world.folder / "home/data/models")


def kit(world, path):
    shutil.copy(build(SPEC), world.folder / path)


def differ(world, *names):
    assert len({world.names.pop(name) for name in names}) == len(names)


test_what_is_printed = transcript("adapters.txt", repo, french, polish, dora, wrong, kit, differ)
