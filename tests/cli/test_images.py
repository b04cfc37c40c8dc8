"""`edgechat run` with images: files and standard input, and a model that does not see."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.base.images.files import encoded, quadrants
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.cli.test_run_plain import held, open_store, sentences
from tests.kit.vision import plain, seeing

pytestmark = pytest.mark.slow

QUESTION = "What colour is it?"


@pytest.fixture
def model(tmp_path):
    """Return a real model that names the colour of the last image."""
    eyes = seeing("dense")
    shutil.copy(eyes.projector, tmp_path / "mmproj-eyes.gguf")
    return Path(shutil.copy(eyes.model, tmp_path / "eyes.gguf"))


def colour(folder, name):
    from PIL import Image

    path = folder / f"{name}.png"
    path.write_bytes(encoded(Image.fromarray(np.ascontiguousarray(plain(name))), "PNG"))
    return path


def test_the_model_sees_the_images(model, tmp_path):
    red, blue = colour(tmp_path, "red"), colour(tmp_path, "blue")
    assert edgechat("run", model, QUESTION, "--image", red).stdout.strip() == "red"
    run = edgechat("run", model, QUESTION, "--image", red, "--image", blue, "--json")
    assert json.loads(run.stdout)["text"].strip() == "blue"
    one, _ = open_store(lambda store: store.chats())
    _, turns = open_store(lambda store: store.load(one.id))
    assert [image.name for image in turns[0].images] == ["red.png", "blue.png"]


def test_an_image_is_piped_in(model, tmp_path):
    command = [*EDGECHAT, "run", str(model), QUESTION, "--image", "-"]
    run = subprocess.run(
        command, input=colour(tmp_path, "green").read_bytes(), capture_output=True, timeout=90
    )
    assert run.stdout.decode().strip() == "green"


def test_images_in_a_conversation(model, tmp_path):
    red = colour(tmp_path, "red")
    run = held(model, f"/image {tmp_path / 'gone.png'}", f"/image {red}", QUESTION, "/new", QUESTION)
    assert [line.strip() for line in run.stdout.splitlines()] == ["red", "nothing"]
    told = sentences(run)
    assert "error: gone.png cannot be read: No such file or directory." in told
    assert "red.png, 64 × 64 pixels, will be sent with the next question." in told


@pytest.mark.usefixtures("measured")
def test_a_model_that_does_not_see_says_so_before_it_is_loaded(script, tmp_path):
    path, red = script(reply="Red."), colour(tmp_path, "red")
    run = edgechat("run", path, QUESTION, "--image", red, "--json")
    assert complaint(run).startswith("error: model cannot see images.")
    assert open_store(lambda store: store.chats()) == []
    run = held(path, f"/image {red}", "Who are you?")
    assert run.stdout == "Red.\n"
    assert "error: model cannot see images." in sentences(run)


@pytest.mark.parametrize(
    ("words", "piped", "said"),
    [
        (("What?", "--image", "-"), "no image", "is not an image"),
        (("--image", "-"), "no image", "requires a prompt"),
        (("-", "--image", "-"), "no image", "requires a prompt"),
        (("What?", "--image", "-", "--image", "-"), "no image", "Only one image can be piped in"),
        (("What?", "--image", "pyproject.toml"), None, "is not an image"),
    ],
)
def test_what_cannot_be_sent_is_told(model, words, piped, said):
    assert said in complaint(edgechat("run", model, *words, piped=piped))


def test_a_damaged_image_is_told(model, tmp_path):
    (tmp_path / "half.png").write_bytes(encoded(quadrants(), "PNG")[:60])
    assert "half.png" in complaint(edgechat("run", model, "What?", "--image", tmp_path / "half.png"))
