"""A turn with calls computes only what is new: the tools, the question and the results stay in the cache."""

import json
from itertools import pairwise

import msgspec
import pytest

from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.reply.calls import ToolAccess
from edgechat.engine.types import Finished, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.tools.registry import ToolSet
from edgechat.tools.tool import ToolSpec
from tests.chat.offering import Shelf, permit
from tests.engine.families import SOURCES
from tests.engine.runtimes import plan
from tests.kit import tiny

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"book": {"enum": ["birds", "boats"]}},
    "required": ["book"],
    "additionalProperties": False,
}
# It keeps a random model from thinking, and from endless white space.
BIAS = tuple((ord(sign), -50.0) for sign in " \n\t\rhafs")
OPTIONS = GenerationOptions(sampling=Sampling(temperature=2.0, top_k=0, seed=1, bias=BIAS))


class Calling(EngineSupervisor):
    """A model with random weights, which is made to call a tool first, and then to say a few letters."""

    async def stream(self, request, on_progress=None, *, may_load=True):
        is_first = request.messages[-1].role == "user"
        choice = {"tool_choice": "required", "most_calls": 1} if is_first else {"max_tokens": 8}
        async for event in super().stream(msgspec.structs.replace(request, **choice), on_progress):
            yield event


def access(shelf):
    about = "Reads one of the books on the shelf. " * 40
    tools = [
        ToolSpec(server="shelf", name=name, description=about, schema=json.dumps(SCHEMA), read_only=True)
        for name in ("borrow", "read")
    ]
    return ToolAccess(tools=ToolSet(tuple(tools), servers={"shelf": shelf}), permission=permit)


async def asked(conversation, engine, question):
    """Ask, and return what each request of the reply took."""
    await conversation.ask(question)
    reply = conversation.answer(engine, OPTIONS, access=access(Shelf()))
    return [event.usage async for event in reply if isinstance(event, Finished)]


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
async def test_only_what_is_new_is_computed(kind, store):
    path = tiny(kind, chat_template=SOURCES["hermes"])
    engine = Calling(plan(path, context=8192))
    conversation = Conversation(store, "m", system="Be brief. " * 50)
    try:
        usages = await asked(conversation, engine, "What do the books say?")
        usages += await asked(conversation, engine, "And the other one?")
        usages += await asked(conversation, engine, "And again?")
    finally:
        await engine.close()
    assert [len(turn.rounds) for turn in conversation.turns if turn.role == "assistant"] == [1, 1, 1]
    for before, after in pairwise(usages):
        known = before.prompt_tokens + before.completion_tokens
        assert after.cached_tokens >= 0.98 * known, usages
