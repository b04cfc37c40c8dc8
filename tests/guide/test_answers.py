"""The guide that ships, through the real worker: it knows itself, and the commonest questions."""

import pytest

from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.prepare import prepare

pytestmark = pytest.mark.slow

QUESTIONS = {
    "Hi!": "I am the guide",
    "What are you?": "tiny language model",
    "What is edgechat?": "chat with a language model on your own machine",
    "How do I stop an answer?": "Escape",
    "How do I start a new chat?": "Ctrl+N",
    "How do I get a model?": "`edgechat pull NAME`",
    "Where are my chats saved?": "chats.db",
    "Does it work offline?": "offline",
    "Is it private?": "sent",
    "How do I search my chats?": "Ctrl+F",
    "How do I delete a model?": "`edgechat rm",
    "What does edgechat doctor do?": "`edgechat doctor`",
    "What does --seed do?": "`--seed",
    "What is the KV cache?": "nothing is computed twice",
    "What is speculative decoding?": "guess the next tokens",
    "Can other programs use it?": "`edgechat serve`",
    "What is a quant?": "fewer bits",
    "How much memory do I need?": "size of its file",
    "Do I need a GPU?": "GPU",
    "How do I quit?": "Ctrl+Q",
    "What is the capital of France?": "I am a small guide that only knows edgechat",
}


async def test_the_commonest_questions():
    plan = prepare("guide")
    engine = EngineSupervisor(plan)
    wrong = {}
    for question, words in QUESTIONS.items():
        request = ChatRequest(
            id=question, messages=(Message("user", question),), sampling=Sampling(**plan.sampling.given())
        )
        events = [event async for event in engine.stream(request)]
        answer = "".join(event.text for event in events if isinstance(event, Delta))
        assert isinstance(events[-1], Finished)
        if words not in answer or events[-1].reason != "stop":
            wrong[question] = answer
    await engine.close()
    assert not wrong


@pytest.mark.parametrize("system", [None, "You are a pirate."])
async def test_a_conversation(system):
    plan = prepare("guide")
    engine = EngineSupervisor(plan)
    messages = [Message("system", system)] if system else []
    for question, words in (
        ("hi", "guide"),
        ("how do I stop it", "Escape"),
        ("and a new line?", "Shift+Enter"),
    ):
        messages.append(Message("user", question))
        request = ChatRequest(id=question, messages=tuple(messages), sampling=Sampling(temperature=0))
        answer = "".join([event.text async for event in engine.stream(request) if isinstance(event, Delta)])
        assert words in answer
        messages.append(Message("assistant", answer))
    await engine.close()
