"""Plans and backends for the engine's tests."""

from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, closing

import pytest

from edgechat.device import mlx
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.planner.plan import LoadPlan
from tests import scripted as scripts
from tests.engine.runtimes import KINDS, Cold, Runtime, load, plan
from tests.kit import CHATML
from tests.scripted.backend import CHECKPOINT_BYTES

MakePlan = Callable[..., LoadPlan]
RUNTIMES = (
    pytest.param(Runtime("llama.cpp"), id="llama.cpp"),
    pytest.param(
        Runtime("mlx"), id="mlx", marks=pytest.mark.skipif(bool(mlx.missing()), reason=mlx.missing())
    ),
)


@pytest.fixture
def scripted(tmp_path, scripted_workers):
    """Return a function that plans a scripted model: `scripted(reply="x", context=100)`."""

    def make(context=4096, n_seq_max=4, n_batch=512, n_checkpoints=8, **script):
        path = scripts.write(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", **script)
        return LoadPlan(
            model_path=str(path),
            model_name="scripted",
            context=context,
            n_seq_max=n_seq_max,
            n_batch=n_batch,
            checkpoint_bytes=n_checkpoints * CHECKPOINT_BYTES,
            threads=1,
        )

    return make


@pytest.fixture
def opened():
    """Return a function that returns what it is given, and closes it when the test ends."""
    with ExitStack() as stack:
        yield lambda made: stack.enter_context(closing(made))


@pytest.fixture
async def running():
    """Return one for what is closed in a loop."""
    async with AsyncExitStack() as stack:
        yield lambda made: (stack.push_async_callback(made.close), made)[1]


@pytest.fixture(scope="module")
def template():
    """The template of a model that has none, with the marks of scripted ones."""
    with closing(ChatTemplate(None, bos="<s>", eos="<|im_end|>")) as template:
        yield template


@pytest.fixture(scope="module")
def chatml():
    """The template of tiny models."""
    with closing(ChatTemplate(CHATML)) as template:
        yield template


@pytest.fixture(params=RUNTIMES, scope="module")
def runtime(request):
    """Run the test on every backend that computes models."""
    return request.param


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    """Run the test for every kind of model."""
    return request.param


@pytest.fixture
def open_backend(runtime, opened):
    """Return a function that loads a tiny model: `open_backend("moe", context=256)`."""

    def make(kind="dense", **changes):
        return opened(load(plan(runtime.model(kind), **changes)))

    return make


@pytest.fixture(scope="module")
def cold(runtime, kind):
    """Return a function that computes tokens afresh and returns the last rows."""
    backend = load(plan(runtime.model(kind), n_seq_max=1, n_outputs_max=64))
    yield Cold(backend)
    backend.close()
