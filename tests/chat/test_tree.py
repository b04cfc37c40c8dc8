import time
from contextlib import aclosing

import pytest

from edgechat.base.errors import ChatBusy, ChatNotFound, EngineCrashed, PromptTooLong, StoreError
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.importing import parse_chat
from edgechat.chat.messages import messages_of, title_of
from edgechat.chat.records import Attachment, ChatSettings, Figures, Turn
from edgechat.chat.tree import Tree, left_out
from edgechat.engine.types import Dropped, Message, Usage
from edgechat.settings import SamplingDefaults
from tests.fakes import FakeEngine, send


async def drain(events):
    async for _ in events:
        pass


async def talk(store, *texts, system=None):
    """Return a conversation with these questions and answers by turns."""
    conversation = Conversation(store, "guide", system=system)
    for question, answer in zip(texts[::2], texts[1::2], strict=True):
        await drain(send(conversation, FakeEngine([answer]), question))
    return conversation


def said(conversation):
    return [turn.content for turn in conversation.turns]


async def reopened(store, conversation):
    return said(await Conversation.load(store, conversation.chat.id))


async def test_a_question_is_edited_into_a_line_of_its_own(store):
    conversation = await talk(store, "1?", "One.", "2?", "Two.", "3?", "Three.")
    second = conversation.turns[2]
    new = await conversation.edit(second.id, "2b?")
    assert said(conversation) == ["1?", "One.", "2b?"]
    engine = FakeEngine(["Two b."])
    await drain(conversation.answer(engine))
    assert [one.content for one in engine.requests[0].messages] == ["1?", "One.", "2b?"]
    assert await reopened(store, conversation) == said(conversation) == ["1?", "One.", "2b?", "Two b."]
    assert (conversation.branches(second.id), conversation.branches(new.id)) == ((0, 2), (1, 2))
    assert conversation.branches(conversation.turns[0].id) == (0, 1)


async def test_the_first_question_may_be_edited_too(store):
    for system in (None, "Be brief."):
        conversation = await talk(store, "1?", "One.", system=system)
        head = [system] if system else []
        await conversation.edit(conversation.turns[len(head)].id, "1b?")
        assert await reopened(store, conversation) == said(conversation) == [*head, "1b?"]
        await conversation.switch(conversation.turns[-1].id, 0)
        assert await reopened(store, conversation) == said(conversation) == [*head, "1?", "One."]


async def test_what_was_switched_to_is_shown_when_it_is_opened_again(store):
    conversation = await talk(store, "1?", "One.", "2?", "Two.")
    first = conversation.turns[0].id
    await conversation.edit(first, "1b?")
    await drain(conversation.answer(FakeEngine(["One b."])))
    await conversation.switch(conversation.turns[0].id, 0)
    assert await reopened(store, conversation) == said(conversation) == ["1?", "One.", "2?", "Two."]
    again = await Conversation.load(store, conversation.chat.id)
    await drain(send(again, FakeEngine(["Three."]), "3?"))
    assert await reopened(store, again) == ["1?", "One.", "2?", "Two.", "3?", "Three."]
    await again.switch(first, 1)
    assert await reopened(store, again) == said(again) == ["1b?", "One b."]
    with pytest.raises(ValueError, match="no branch 2"):
        await again.switch(first, 2)


async def test_a_complete_reply_is_tried_again_and_the_old_one_stays(store):
    conversation = await talk(store, "1?", "One.")
    old = conversation.turns[-1]
    conversation.regenerate()
    assert said(conversation) == ["1?"]
    await drain(conversation.answer(FakeEngine(["Uno."])))
    assert await reopened(store, conversation) == said(conversation) == ["1?", "Uno."]
    assert conversation.branches(conversation.turns[-1].id) == (1, 2)
    await conversation.switch(conversation.turns[-1].id, 0)
    assert conversation.turns[-1] == old


async def test_a_try_without_words_is_no_branch(conversation):
    with pytest.raises(EngineCrashed):
        await drain(send(conversation, FakeEngine([EngineCrashed("It died.")]), "1?"))
    conversation.regenerate()
    await drain(conversation.answer(FakeEngine(["One."])))
    assert conversation.branches(conversation.turns[-1].id) == (0, 1)


async def test_an_edit_that_is_too_long_leaves_the_old_line(store):
    too_long = FakeEngine([PromptTooLong("It has 9000 tokens.")])
    for texts in (("1?", "One."), ("1?", "One.", "2?", "Two.")):
        conversation = await talk(store, *texts)
        await conversation.edit(conversation.turns[-2].id, "long " * 100)
        with pytest.raises(PromptTooLong):
            await drain(conversation.answer(too_long))
        assert await reopened(store, conversation) == said(conversation) == list(texts)
    assert too_long.forgotten == []


async def test_a_question_that_is_too_long_after_a_switch_leaves_the_line_that_is_shown(store):
    conversation = await talk(store, "1?", "One.")
    await conversation.edit(conversation.turns[0].id, "1b?")
    await drain(conversation.answer(FakeEngine(["One b."])))
    await conversation.switch(conversation.turns[0].id, 0)
    with pytest.raises(PromptTooLong):
        await drain(send(conversation, FakeEngine([PromptTooLong("Too long.")]), "long"))
    assert await reopened(store, conversation) == said(conversation) == ["1?", "One."]


async def test_nothing_changes_under_a_reply_that_is_being_written(store):
    conversation = await talk(store, "1?", "One.")
    first = conversation.turns[0].id
    await conversation.ask("2?")
    async with aclosing(conversation.answer(FakeEngine(["Two ", 5.0, "more"]))) as events:
        await anext(events)
        for change in (
            lambda: conversation.edit(first, "x"),
            lambda: conversation.switch(first, 0),
            lambda: conversation.set_system("x"),
            lambda: conversation.ask("x"),
        ):
            with pytest.raises(ChatBusy, match="being generated"):
                await change()
        with pytest.raises(ChatBusy):
            conversation.regenerate()
        await conversation.rename("Another title")
    assert [one.title for one in await store.chats()] == ["Another title"]


async def test_only_questions_of_the_line_are_edited_and_only_what_was_asked_is_tried_again(store):
    conversation = await talk(store, "1?", "One.")
    for name in (conversation.turns[1].id, "nosuch"):
        with pytest.raises(ChatNotFound, match="Only a question"):
            await conversation.edit(name, "x")
    with pytest.raises(ChatNotFound, match="no question yet"):
        Conversation(store, "guide").regenerate()


async def test_two_programs_ask_in_lines_of_their_own(store):
    mine = await talk(store, "1?", "One.", "2?", "Two.")
    other = await Conversation.load(store, mine.chat.id)
    await other.edit(other.turns[2].id, "2b?")
    await drain(other.answer(FakeEngine(["Two b."])))
    await drain(send(mine, FakeEngine(["Three."]), "3?"))
    assert said(mine) == ["1?", "One.", "2?", "Two.", "3?", "Three."]
    await drain(send(other, FakeEngine(["Three b."]), "3b?"))
    assert said(other) == ["1?", "One.", "2b?", "Two b.", "3b?", "Three b."]
    again = await Conversation.load(store, mine.chat.id)
    assert again.branches(again.turns[2].id) == (1, 2)


async def test_a_system_prompt_changes_in_all_lines(store):
    conversation = await talk(store, "1?", "One.")
    await conversation.edit(conversation.turns[0].id, "1b?")
    await drain(conversation.answer(FakeEngine(["One b."])))
    for text, expected in (("Be brief.", ["Be brief."]), (" Be kind. ", ["Be kind."]), ("", []), (None, [])):
        await conversation.set_system(text)
        assert conversation.system == (expected[0] if expected else None)
        assert await reopened(store, conversation) == said(conversation) == [*expected, "1b?", "One b."]
        again = await Conversation.load(store, conversation.chat.id)
        assert again.turns == conversation.turns
        await again.switch(again.turns[len(expected)].id, 0)
        assert said(again) == [*expected, "1?", "One."]
        await again.switch(again.turns[len(expected)].id, 1)
    engine = FakeEngine(["Two."])
    await conversation.set_system("Sing.")
    await drain(send(conversation, engine, "2?"))
    assert engine.requests[0].messages[0] == Message("system", "Sing.")


async def test_a_system_prompt_of_a_chat_that_has_not_begun(store, conversation):
    await conversation.set_system("Be brief.")
    await conversation.rename("Mine")
    await conversation.set_settings(ChatSettings(think=False))
    await drain(send(conversation, FakeEngine(), "1?"))
    assert said(conversation)[0] == "Be brief."
    (chat,) = await store.chats()
    assert (chat.title, chat.settings) == ("Mine", ChatSettings(think=False))


async def test_settings_and_title_of_a_chat(store):
    conversation = await talk(store, "**What** is `this`?\nmore", "That.")
    assert conversation.chat.title == "What is this?"
    wanted = ChatSettings(think=True, sampling=SamplingDefaults(temperature=0.5))
    await conversation.set_settings(wanted)
    await conversation.rename(" A\x1b new\ntitle ")
    again = await Conversation.load(store, conversation.chat.id)
    assert (again.chat.settings, again.chat.title) == (wanted, "A new title")
    await again.rename("  ")
    assert again.chat.title == "What is this?"


async def test_settings_of_a_newer_program_are_read_as_far_as_they_are_known(store):
    conversation = await talk(store, "1?", "One.")
    assert store._db is not None
    text = '{"think": false, "voice": "low", "sampling": {"top_k": 5, "swirl": 1, "temperature": 99}}'
    store._db.execute("UPDATE conversations SET settings = ?", (text,))
    (chat,) = await store.chats()
    assert chat.settings == ChatSettings(think=False, sampling=SamplingDefaults(top_k=5))
    await conversation.set_settings(ChatSettings())


async def test_attachments_are_sent_before_the_question(store, conversation):
    files = [Attachment("a.md", "```py\nx\n```\n"), Attachment("b\x1b\n.txt", "plain")]
    engine = FakeEngine(["One."])
    await conversation.ask("What?", files)
    await drain(conversation.answer(engine))
    assert engine.requests[0].messages[0].content == (
        "a.md\n````\n```py\nx\n```\n````\n\nb .txt\n```\nplain\n```\n\nWhat?"
    )
    again = await Conversation.load(store, conversation.chat.id)
    assert again.turns[0].attachments == tuple(files)
    await again.edit(again.turns[0].id, "Who?")
    assert again.turns[0].attachments == tuple(files)
    await again.edit(again.turns[0].id, "Who?", ())
    assert again.turns[0].attachments == ()


async def test_attachments_without_words(conversation):
    await conversation.ask("", [Attachment("notes.txt", "x")])
    assert conversation.chat.title == "notes.txt"
    assert messages_of(conversation.turns) == (Message("user", "notes.txt\n```\nx\n```"),)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello\nyou", "Hello"),
        ("\n\n  ## Why **is** this?", "Why is this?"),
        ("> - quoted _words_", "quoted words"),
        ("1. first", "first"),
        ("```python\nprint(snake_case)\n```", "print(snake_case)"),
        ("see [the docs](http://x.y) now", "see the docs now"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("***", "***"),
        ("---\n***", "--- ***"),
        ("x" * 99, "x" * 59 + "…"),
        ("", ""),
        ("*What* is **2*3*4** and snake_case?", "What is 2*3*4 and snake_case?"),
    ],
)
def test_titles(text, title):
    assert title_of(text) == title


def line(*sizes, context=1000, dropped=0, silent=False):
    """Return a line of exchanges, of which each reply counted so many tokens before and in itself."""
    turns = []
    for number, (before, reply) in enumerate(sizes):
        figures = Figures(
            context=context,
            usage=Usage(before, 0, reply, dropped if number == len(sizes) - 1 else 0),
            thinking_tokens=0,
        )
        turns.append(Turn(id=f"q{number}", chat_id="c", role="user", content="q", created_at=0.0))
        if silent:
            turns.append(
                Turn(
                    id=f"s{number}", chat_id="c", role="assistant", content="", state="failed", created_at=0.0
                )
            )
        turns.append(
            Turn(id=f"a{number}", chat_id="c", role="assistant", content="a", created_at=0.0, figures=figures)
        )
    return turns


def ids(turns):
    return [turn.id for turn in turns]


def test_what_left_the_window_comes_after_the_first_turn_where_that_is_short():
    short = line((200, 50), (400, 100), (600, 100), (500, 10), dropped=2)
    assert ids(left_out(short)) == ["q1", "a1", "q2", "a2"]
    long = line((200, 51), (400, 100), (600, 100), (500, 10), dropped=2)
    assert ids(left_out(long)) == ["q0", "a0", "q1", "a1"]
    assert ids(left_out(line((10, 10), (20, 10)))) == []
    assert ids(left_out([])) == []


def test_a_reply_without_words_leaves_with_its_question():
    turns = line((10, 10), (20, 10), (30, 10), dropped=1, silent=True)
    assert ids(left_out(turns)) == ["q1", "s1", "a1"]


def test_a_system_prompt_never_leaves():
    system = Turn(id="s", chat_id="c", role="system", content="s", created_at=0.0)
    turns = [system, *line((10, 10), (20, 10), (30, 10), dropped=1)]
    assert ids(left_out(turns)) == ["q1", "a1"]
    # A later question, and a reply that did not come to its end, change nothing.
    turns += [Turn(id=name, chat_id="c", role="user", content="q", created_at=0.0) for name in "xy"]
    assert ids(left_out(turns)) == ["q1", "a1"]


async def test_the_window_of_a_conversation(store):
    conversation = await talk(store, "1?", "One.", "2?", "Two.")
    await drain(send(conversation, FakeEngine([Dropped("", 1), "Three."]), "3?"))
    assert [turn.content for turn in conversation.left_out()] == ["2?", "Two."]


async def test_a_chat_in_the_trash_cannot_be_written_in(store):
    conversation = await talk(store, "1?", "One.")
    await store.trash(conversation.chat.id)
    with pytest.raises(StoreError, match="deleted in the meantime"):
        await conversation.ask("2?")
    await store.restore(conversation.chat.id)
    await conversation.ask("2?")


async def test_what_is_on_another_line_is_gone_to(store, tmp_path):
    conversation = await talk(store, "1?", "One.", "2?", "Two.")
    first, old = conversation.turns[0].id, conversation.turns[2].id
    await conversation.edit(first, "1b?")
    await drain(conversation.answer(FakeEngine(["One b."])))
    new = conversation.turns[-1].id
    shown = list(conversation.turns)
    await conversation.go_to(new)
    assert conversation.turns == shown
    await conversation.go_to(old)
    assert await reopened(store, conversation) == said(conversation) == ["1?", "One.", "2?", "Two."]
    with pytest.raises(ChatNotFound):
        await conversation.go_to("nosuch")
    with pytest.raises(ChatNotFound):
        await Conversation(store, "guide").go_to("nosuch")
    await conversation.ask("3?")
    async with aclosing(conversation.answer(FakeEngine(["Three ", 5.0, "more"]))) as events:
        await anext(events)
        with pytest.raises(ChatBusy):
            await conversation.go_to(new)
        await conversation.go_to(old)
    other = await Conversation.load(store, conversation.chat.id)
    await other.edit(other.turns[0].id, "1c?")
    await conversation.go_to(other.turns[0].id)
    assert said(conversation) == ["1c?"]


async def test_a_try_that_cannot_begin_leaves_the_reply_that_there_was(store):
    conversation = await talk(store, "1?", "One.", "2?", "Two.", system="Be brief.")
    shown = list(conversation.turns)
    for at in (None, shown[1].id, shown[2].id):
        conversation.regenerate(at)
        assert conversation.turns[-1].role == "user"
        conversation.put_back()
        assert conversation.turns == shown
        conversation.put_back()
        assert conversation.turns == shown
    conversation.regenerate(shown[1].id)
    conversation.regenerate()
    assert conversation.turns == shown[:4]
    engine = FakeEngine(["Three."])
    await drain(send(conversation, engine, "3?"))
    sent = [message.content for message in engine.requests[0].messages]
    assert sent == ["Be brief.", "1?", "One.", "2?", "Two.", "3?"]


async def test_nothing_is_put_back_where_another_try_has_begun(store):
    conversation = await talk(store, "1?", "One.")
    conversation.regenerate()
    async with aclosing(conversation.answer(FakeEngine(["One b."]))) as events:
        await anext(events)
        conversation.put_back()
        assert said(conversation) == ["1?"]
        await drain(events)
    conversation.put_back()
    assert said(conversation) == ["1?", "One b."]
    conversation.regenerate()
    with pytest.raises(EngineCrashed):
        await drain(conversation.answer(FakeEngine([EngineCrashed("It died.")])))
    conversation.put_back()
    assert said(conversation) == ["1?", ""]


async def test_a_reply_that_answers_nothing_is_not_tried_again(store):
    new = parse_chat('[{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Hi"}]')
    await store.add(new.chat, new.turns)
    conversation = await Conversation.load(store, new.chat.id)
    with pytest.raises(ChatNotFound, match="no question yet"):
        conversation.regenerate(conversation.turns[0].id)
    assert said(conversation) == ["Hello!", "Hi"]


def test_long_lines_cost_their_length():
    """The bound is 20 times what it takes, and a tenth of what one look at all turns for each would."""
    turns = [
        Turn(
            id=str(number),
            chat_id="c",
            role="assistant" if number % 2 else "user",
            content="x",
            parent_id=str(number - 1) if number else None,
            created_at=1.0,
        )
        for number in range(20_000)
    ]
    began = time.process_time()
    tree = Tree(turns)
    assert tree.line(None) == tree.line("7") == turns
    assert all(len(tree.siblings(turn.id)) == 1 for turn in turns)
    assert sum(tree.is_answered(turn.id) for turn in turns) == 10_000
    assert time.process_time() - began < 2.0
