"""Images in the caches of the MLX backend: logits equal those of mlx-vlm's models."""

import contextlib
import importlib
import json
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mlx_vlm")

from edgechat.base.errors import BackendMissing, BadRequest, LoadFailed
from edgechat.base.images.image import Pixels
from edgechat.engine.backends.base import BatchPart, EncodingStopped, Media, media_runs
from edgechat.engine.backends.mlx import folder as loading
from edgechat.engine.backends.mlx.backend import MlxBackend
from edgechat.engine.backends.mlx.vision import FAMILIES, VlmModel
from edgechat.models.formats.mlx.vision import TOWERS
from edgechat.planner.companions import ProjectorPlan
from tests.engine.runtimes import is_true, load, plan, some
from tests.kit.vision import noisy
from tests.kit.vision.mlx_families import mlx_family

pytestmark = pytest.mark.slow


def seer(folder, **changes):
    tower = ProjectorPlan(path=str(folder), name="its vision tower", vision=True, audio=False)
    backend = load(plan(folder, projector=tower, **changes))
    assert isinstance(backend, MlxBackend)
    assert backend.media_encoder is not None, backend.no_vision
    return backend


@pytest.fixture(params=sorted(FAMILIES))
def kind(request):
    return str(request.param)


@pytest.fixture
def backend(kind):
    backend = seer(mlx_family(kind))
    yield backend
    backend.close()


def pixels_of(picture):
    height, width, _ = picture.shape
    return Pixels(width, height, picture.tobytes())


def read(backend, seq, start, parts):
    """Compute the parts of a prompt; return where it ends."""
    assert backend.media_encoder is not None
    for part in parts:
        if isinstance(part, Media):
            embeddings = backend.media_encoder.encode(part, between=lambda: True)
            backend.media_encoder.decode(seq, start, part, embeddings)
            start += len(part.ids)
        else:
            backend.decode([BatchPart(seq, start, part, 0)])
            start += len(part)
    return start


def reference(kind, before, picture, after, n):
    """Return the last n rows of a prompt by mlx-vlm's own model, all at once and without caches."""
    from mlx_vlm.utils import load_model

    folder, family = mlx_family(kind), FAMILIES[kind]
    model = load_model(folder)
    if kind == "gemma3":
        model.config.hidden_size = model.config.text_config.hidden_size
    module = importlib.import_module(f"mlx_vlm.models.{family.module}.processing_{family.module}")
    processor = getattr(module, family.processor).from_pretrained(folder, trust_remote_code=False)
    made = dict(processor(text=[family.stands_for], images=[Image.fromarray(picture)]))
    image = np.array(made.pop("input_ids"))[0].tolist()
    made.pop("attention_mask")
    ids = mx.array([[*before, *image, *after]])
    found = model.get_input_embeddings(ids, mask=mx.ones_like(ids), **made)
    options = {key: value for key, value in found.to_dict().items() if value is not None}
    options.pop("attention_mask_4d", None)
    if family.sees_itself:  # of which mlx-vlm's own mask knows nothing
        at = np.arange(ids.shape[1])
        cells = np.array(ids[0]) == processor.image_token_id
        options["mask"] = mx.array((at <= at[:, None]) | (cells & cells[:, None]))
    return np.array(model.language_model(ids, **options).logits[0, -n:])


@pytest.mark.parametrize(("width", "height"), [(64, 64), (128, 96)])
def test_the_logits_are_those_of_mlx_vlm(kind, backend, width, height):
    picture, before, after = noisy("red", width, height), some(1, 30), some(2, 20)
    parts = backend.media_encoder.cut(pixels_of(picture), "red")
    end = read(backend, 0, 0, [tuple(before), *parts])
    rows = backend.decode([BatchPart(0, end, after, len(after))])
    expected = reference(kind, before, picture, after, len(after))
    assert is_true(rows, expected)
    other = reference(kind, before, noisy("blue", width, height), after, len(after))
    assert np.abs(rows - other).max() > 10 * np.abs(rows - expected).max()  # it does matter


def asked(backend, seq):
    """Compute a red picture between two texts; return the rows of the second one."""
    parts = backend.media_encoder.cut(pixels_of(noisy("red", 64, 64)), "red")
    end = read(backend, seq, 0, [tuple(some(1, 30)), *parts])
    return backend.decode([BatchPart(seq, end, some(2, 20), 20)]).copy()


def test_texts_are_computed_as_without_a_tower(kind, backend, opened):
    """By mlx-lm, where that knows the family."""
    if not loading.knows(kind):
        pytest.skip("mlx-lm does not know it")
    blind = opened(load(plan(mlx_family(kind))))
    assert not isinstance(blind._model, VlmModel)
    rows = []
    for one in (blind, backend):
        one.decode([BatchPart(0, 0, some(4, 40), 0)])
        rows.append(one.decode([BatchPart(0, 40, some(5, 10), 10)]).copy())
    assert is_true(*rows)


def test_a_picture_in_several_calls(kind, backend, opened):
    """If its cells attend to each other, it is computed as a whole all the same."""
    small = opened(seer(mlx_family(kind), n_batch=5, n_ubatch=5))
    assert is_true(asked(small, 0), asked(backend, 0))


def test_a_sequence_with_a_picture_is_cut_copied_saved_and_restored(backend):
    expected, tokens = asked(backend, 0), some(1, 30)
    parts = backend.media_encoder.cut(pixels_of(noisy("red", 64, 64)), "red")
    for part in parts:
        tokens += part.ids if isinstance(part, Media) else part
    whole = len(tokens)
    run = next(media_runs(tokens))
    assert not backend.truncate(0, run.start + 3)  # half of a picture is none
    assert backend.truncate(0, whole)
    state = backend.save(0)
    assert backend.copy(0, 1, whole)
    for seq in (0, 1):
        assert is_true(backend.decode([BatchPart(seq, whole, some(2, 20), 20)]), expected)
    backend.truncate(1, 0)
    assert backend.restore(1, state, tokens)
    assert is_true(backend.decode([BatchPart(1, whole, some(2, 20), 20)]), expected)
    backend.decode([BatchPart(2, 0, some(1, 30), 0)])
    before = backend.checkpoint(2)
    # Positions are those of tokens again where the picture has gone.
    assert backend.truncate(1, 30) or backend.rewind(1, before)
    cold = backend.decode([BatchPart(2, 30, some(3, 9), 9)]).copy()
    assert is_true(backend.decode([BatchPart(1, 30, some(3, 9), 9)]), cold)


def test_others_compute_while_a_picture_is_encoded(backend):
    """In threads of their own, as the engine has it; the embeddings are the same."""
    media = next(
        part
        for part in backend.media_encoder.cut(pixels_of(noisy("green", 64, 64)), "green")
        if isinstance(part, Media)
    )
    alone = backend.media_encoder.encode(media, between=lambda: True)
    wanted, turn, done = threading.Event(), threading.Event(), threading.Event()
    found = []

    def between():
        wanted.set()
        turn.wait(10)
        turn.clear()
        return True

    def encode():
        found.append(vision.encode(media, between=between))
        done.set()
        wanted.set()

    vision, n_turns = backend.media_encoder, 0
    threading.Thread(target=encode, daemon=True).start()
    while not done.is_set():
        assert wanted.wait(10)
        wanted.clear()
        if not done.is_set():
            backend.decode([BatchPart(0, 5 * n_turns, some(n_turns, 5), 1)])
            n_turns += 1
            turn.set()
    assert n_turns >= 3  # before it, and between its layers
    assert np.array_equal(found[0], alone)


def test_an_encoding_that_nobody_wants_ends(backend):
    (media, *_) = (
        part
        for part in backend.media_encoder.cut(pixels_of(noisy("green", 64, 64)), "green")
        if isinstance(part, Media)
    )
    answers = iter([True, False])
    with pytest.raises(EncodingStopped):
        backend.media_encoder.encode(media, between=lambda: next(answers))
    assert len(backend.media_encoder.encode(media, between=lambda: True)) == len(media.ids)


def test_an_image_that_cannot_be_cut_is_refused(monkeypatch, opened):
    backend = opened(seer(mlx_family("qwen3_vl")))
    assert backend.media_encoder is not None
    with pytest.raises(BadRequest, match="too elongated: 1000x4"):
        backend.media_encoder.cut(pixels_of(noisy("red", 1000, 4)), "red")
    monkeypatch.setattr("edgechat.engine.backends.mlx.vision._LONGEST", 1000)
    with pytest.raises(BadRequest, match="aspect ratio"):  # of its processor's own
        backend.media_encoder.cut(pixels_of(noisy("red", 1000, 4)), "red")


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        ("gemma3", "preprocessor_config", "size"),
        ("idefics3", "preprocessor_config", "max_image_size"),
        ("llava", "preprocessor_config", "crop_size"),
    ],
)
def test_sizes_that_make_no_sense_leave_the_text(kind, name, key, tmp_path, opened):
    folder = tmp_path / "model"
    shutil.copytree(mlx_family(kind), folder)
    content = json.loads((folder / f"{name}.json").read_text())
    content[key] = dict.fromkeys(content[key], 1 << 20)
    (folder / f"{name}.json").write_text(json.dumps(content))
    tower = ProjectorPlan(path=str(folder), name="x", vision=True, audio=False)
    if not loading.knows(kind):
        with pytest.raises(LoadFailed, match="images cannot be resized to"):
            load(plan(folder, projector=tower))
        return
    backend = opened(load(plan(folder, projector=tower)))
    assert "images cannot be resized to" in backend.no_vision


@pytest.mark.parametrize("name", ["../other.safetensors", "/tmp/other.safetensors", 7, ["a"]])
def test_weights_outside_of_the_folder_are_not_read(name, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(mlx_family("idefics3"), folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(LoadFailed, match="must only list files in its folder"):
        load(plan(folder))


def test_images_are_cut_in_several_threads(backend):
    assert backend.media_encoder is not None
    pictures = [pixels_of(noisy("red", 32 + 8 * n, 64, seed=n)) for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        cut = list(pool.map(backend.media_encoder.cut, pictures, map(str, range(8))))
    for n, parts in enumerate(cut):
        again = backend.media_encoder.cut(pictures[n], str(n))
        assert [part.ids if isinstance(part, Media) else part for part in parts] == [
            part.ids if isinstance(part, Media) else part for part in again
        ]


def test_an_image_of_a_single_cell_is_refused(opened):
    """Ids could not tell it."""
    folder = mlx_family("qwen3_vl")
    tower = ProjectorPlan(path=str(folder), name="x", vision=True, audio=False, image_tokens=1)
    backend = opened(load(plan(folder, projector=tower)))
    assert backend.media_encoder is not None
    with pytest.raises(BadRequest, match="1 cells"):
        backend.media_encoder.cut(pixels_of(noisy("red", 16, 16)), "red")


def test_a_picture_takes_no_more_cells_than_planned(opened):
    folder = mlx_family("qwen3_vl")
    tower = ProjectorPlan(path=str(folder), name="x", vision=True, audio=False, image_tokens=20)
    backend = opened(load(plan(folder, projector=tower)))
    parts = backend.media_encoder.cut(pixels_of(noisy("red", 512, 512)), "red")
    assert sum(len(part.ids) for part in parts if isinstance(part, Media)) <= 20


def test_no_code_of_a_folder_is_run(tmp_path):
    folder = tmp_path / "evil"
    shutil.copytree(mlx_family("idefics3"), folder)
    mark = tmp_path / "mark"
    (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    for name in ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json"):
        content = json.loads((folder / name).read_text())
        table = dict.fromkeys(("AutoTokenizer", "AutoImageProcessor", "AutoProcessor"), "evil.Evil")
        table["AutoTokenizer"] = ["evil.Evil", None]
        (folder / name).write_text(json.dumps(content | {"auto_map": table}))
    tower = ProjectorPlan(path=str(folder), name="x", vision=True, audio=False)
    with contextlib.suppress(LoadFailed):
        load(plan(folder, projector=tower)).close()
    assert not mark.exists()


def test_a_tower_that_cannot_be_loaded_leaves_the_text(tmp_path, opened):
    folder = tmp_path / "blind"
    shutil.copytree(mlx_family("gemma3"), folder)
    (folder / "preprocessor_config.json").write_text("{")
    tower = ProjectorPlan(path=str(folder), name="x", vision=True, audio=False)
    backend = opened(load(plan(folder, projector=tower)))
    assert backend.media_encoder is None
    assert "blind" in backend.no_vision
    assert backend.decode([BatchPart(0, 0, some(1, 9), 1)]).shape[0] == 1


def test_without_mlx_vlm_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx_vlm", None)
    monkeypatch.setattr("edgechat.engine.backends.mlx.vision.missing_vision", lambda: "Install mlx-vlm.")
    folder = mlx_family("gemma3")
    tower = ProjectorPlan(path=str(folder), name="x", vision=True, audio=False)
    backend = load(plan(folder, projector=tower))
    assert (backend.media_encoder, backend.no_vision) == (None, "Install mlx-vlm.")
    backend.close()
    with pytest.raises(BackendMissing, match=r"Install mlx-vlm\."):  # which mlx-lm does not know
        load(plan(mlx_family("idefics3"), projector=None))


@pytest.mark.parametrize(("said", "whole"), [("vision", True), ("all", False), (None, False)])
def test_whether_cells_see_each_other_is_said_by_gemma_4s_config(said, whole, tmp_path, opened):
    folder = tmp_path / "model"
    shutil.copytree(mlx_family("gemma4"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = said
    (folder / "config.json").write_text(json.dumps(config))
    backend = opened(seer(folder))
    parts = backend.media_encoder.cut(pixels_of(noisy("red", 64, 64)), "red")
    assert [part.whole for part in parts if isinstance(part, Media)] == [whole]


def test_the_families_are_those_that_are_said_to_see():
    assert set(FAMILIES) == set(TOWERS)
