"""Plans and backends for tests of the engine."""

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
    """Return a function that returns its argument, and closes it when the test ends."""
    with ExitStack() as stack:
        yield lambda made: stack.enter_context(closing(made))


@pytest.fixture
async def running():
    """Return the same for objects that are closed asynchronously."""
    async with AsyncExitStack() as stack:
        yield lambda made: (stack.push_async_callback(made.close), made)[1]


@pytest.fixture(scope="module")
def template():
    """Return the template for a model without one, with the marks of scripted models."""
    with closing(ChatTemplate(None, bos="<s>", eos="<|im_end|>")) as template:
        yield template


@pytest.fixture(scope="module")
def chatml():
    """Return the template of the tiny models."""
    with closing(ChatTemplate(CHATML)) as template:
        yield template


@pytest.fixture(params=RUNTIMES, scope="module")
def runtime(request):
    """Run the test with every backend that computes models."""
    return request.param


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    """Run the test with every kind of model."""
    return request.param


@pytest.fixture
def open_backend(runtime, opened):
    """Return a function that loads a tiny model: `open_backend("moe", context=256)`."""

    def make(kind="dense", **changes):
        return opened(load(plan(runtime.model(kind), **changes)))

    return make


@pytest.fixture(scope="module")
def cold(runtime, kind):
    """Return a function that computes tokens without a cache and returns their last rows of logits."""
    backend = load(plan(runtime.model(kind), n_seq_max=1, n_outputs_max=64))
    yield Cold(backend)
    backend.close()
