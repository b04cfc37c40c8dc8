"""Images in conversations: sent to a model that sees, kept while a turn has them, exported and imported."""

import asyncio
import base64
import json
import os
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from edgechat.base.errors import ImageError, NotAChat
from edgechat.base.images.image import PLACE
from edgechat.chat.attachments import keep_image, read_image
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export import export
from edgechat.chat.import_export.export import to_json, to_markdown
from edgechat.chat.import_export.importing import add_chat, parse_chat
from edgechat.chat.messages import messages_of
from edgechat.chat.records import Attachment
from edgechat.chat.storage.migrations import MIGRATIONS
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Message
from tests.base.images.files import encoded, quadrants
from tests.fakes import MODEL, FakeEngine

SEEING = msgspec.structs.replace(MODEL, sees=True)


def png(width=64, height=32):
    return encoded(quadrants(width, height), "PNG")


async def picture(store, name="photo.png", width=64):
    return await asyncio.to_thread(keep_image, store.images, png(width), name)


async def answered(conversation, *, sees=True):
    """Let a model answer; return what it was sent."""
    engine = FakeEngine(["Yes."])
    engine.model = SEEING if sees else MODEL
    async for _ in conversation.answer(engine):
        pass
    return engine.requests[0].messages


def files_of(store):
    return {path.name for path in (store.path.parent / "images").glob("*") if path.suffix != ".json"}


async def test_an_image_reaches_a_model_that_sees(store, conversation):
    photo = await picture(store)
    await conversation.ask("What is this?", [Attachment("a.txt", "milk")], [photo])
    (message,) = await answered(conversation)
    assert message.content == f"{PLACE}a.txt\n```\nmilk\n```\n\nWhat is this?"
    (image,) = message.media
    assert (image.digest, image.width, image.height) == (photo.digest, 64, 32)
    assert Path(image.path).read_bytes() == png()
    again = await Conversation.load(store, conversation.chat.id)
    assert again.turns[0].images == (photo,)
    await again.ask("And?")
    assert (await answered(again))[0] == message


async def test_several_images_have_names_and_successive_questions_keep_their_order(store, conversation):
    first, second, third = [await picture(store, f"{n}.png", 60 + n) for n in range(3)]
    await conversation.ask("Compare.", images=[first, second])
    await conversation.ask("And this?", images=[third])
    (message,) = await answered(conversation)
    assert message.content == f"0.png: {PLACE}\n1.png: {PLACE}\n\nCompare.\n\n{PLACE}And this?"
    assert [image.width for image in message.media] == [60, 61, 62]


async def test_a_model_that_does_not_see_is_told_of_what_it_misses(store, conversation):
    await conversation.ask("What is this?", images=[await picture(store)])
    (message,) = await answered(conversation, sees=False)
    assert message == Message("user", "(photo.png, an image, is missing here.)\n\nWhat is this?")


async def test_an_image_whose_file_is_gone_is_told_and_the_others_are_sent(store, conversation):
    gone, here = [await picture(store, name, width) for name, width in (("a.png", 9), ("b.png", 8))]
    store.images.remove(gone.digest)
    await conversation.ask("What?", images=[gone, here])
    (message,) = await answered(conversation)
    assert message.content == f"(a.png, an image, is missing here.)\nb.png: {PLACE}\n\nWhat?"
    assert [image.digest for image in message.media] == [here.digest]


async def test_a_pasted_place_is_no_place_of_an_image(store, conversation):
    photo = await picture(store, f"a{PLACE}.png")
    await conversation.ask(
        f"{PLACE}What{PLACE}?", [Attachment("a", PLACE)], [photo, await picture(store, width=9)]
    )
    await answered(conversation)
    for sent in await answered(await _asked(conversation, "And?")):
        assert sent.content.count(PLACE) == len(sent.media)


async def _asked(conversation, text):
    await conversation.ask(text)
    return conversation


async def test_a_new_wording_keeps_its_images_unless_it_has_others(store, conversation):
    one, other = await picture(store), await picture(store, "other.png", 9)
    await conversation.ask("What?", images=[one])
    assert (await conversation.edit(conversation.turns[0].id, "Who?")).images == (one,)
    assert (await conversation.edit(conversation.turns[0].id, "Who?", images=[other])).images == (other,)
    assert (await conversation.edit(conversation.turns[0].id, "Who?", images=[])).images == ()
    assert [turn.images for turn in (await Conversation.load(store, conversation.chat.id)).all_turns] == [
        (one,),
        (one,),
        (other,),
        (),
    ]


async def test_a_file_stays_as_long_as_a_turn_has_it(store):
    shared, own = await picture(store), await picture(store, "own.png", 9)
    first, second = Conversation(store, "guide"), Conversation(store, "guide")
    await first.ask("What?", images=[shared, own])
    await second.ask("What?", images=[shared])
    await first.edit(first.turns[0].id, "Why?", images=[])  # the other branch has them still
    await store.trash(first.chat.id)
    assert files_of(store) == {f"{shared.digest}.png", f"{own.digest}.png"}
    await store.restore(first.chat.id)
    await store.trash(first.chat.id)
    await store.purge()
    assert files_of(store) == {f"{shared.digest}.png"}
    await store.delete(second.chat.id)
    assert files_of(store) == set()


async def test_what_is_typed_and_not_sent_keeps_its_images(store):
    photo = await picture(store)
    conversation = Conversation(store, "guide")
    await conversation.ask("What?", images=[photo])
    unsent = {"text": "", "aside": {"images": [{"name": "photo.png", "digest": photo.digest}]}}
    await store.keep_unsent(None, json.dumps(unsent))
    await store.delete(conversation.chat.id)
    assert files_of(store) == {f"{photo.digest}.png"}
    await store.keep_unsent(None, "no JSON")
    conversation = Conversation(store, "guide")
    await conversation.ask("What?", images=[photo])
    await store.delete(conversation.chat.id)
    assert files_of(store) == set()


async def test_a_question_that_is_taken_back_has_its_images_still(store, conversation):
    photo = await picture(store)
    await conversation.ask("What?", images=[photo])
    await conversation.take_back_question()
    assert store.images.get(photo.digest) is not None
    assert (await conversation.ask("What?", images=[photo])).images == (photo,)


async def test_what_nothing_refers_to_is_gone_when_the_store_is_opened_a_while_later(tmp_path, running):
    store = await Store.open(tmp_path / "chats.db")
    kept, forgotten, new = [await picture(store, width=width) for width in (7, 8, 9)]
    await Conversation(store, "guide").ask("What?", images=[kept])
    for image in (kept, forgotten):
        for file in (tmp_path / "images").glob(f"{image.digest}*"):
            os.utime(file, (time.time() - 7200,) * 2)
    await store.close()
    store = running(await Store.open(tmp_path / "chats.db"))
    assert files_of(store) == {f"{kept.digest}.png", f"{new.digest}.png"}


async def test_a_store_in_memory_leaves_no_files():
    store = await Store.in_memory()
    photo = await picture(store)
    found = store.images.get(photo.digest)
    assert found is not None
    await store.close()
    assert not Path(found.path).parent.exists()


async def test_conversations_of_earlier_versions_get_images(tmp_path, running):
    path = tmp_path / "chats.db"
    with sqlite3.connect(path) as db:
        for script in MIGRATIONS[:5]:
            db.executescript(script)
        db.execute("PRAGMA user_version = 5")
        db.execute(
            "INSERT INTO conversations (id, title, model, date, created_at, updated_at) "
            "VALUES ('old', 'A title', 'guide', '2026-08-01', 1.0, 1.0)"
        )
        db.execute(
            "INSERT INTO turns (id, conversation_id, position, role, content, state, created_at, updated_at) "
            "VALUES ('q', 'old', 0, 'user', 'What?', 'complete', 1.0, 1.0)"
        )
    store = running(await Store.open(path))
    conversation = await Conversation.load(store, "old")
    photo = await picture(store)
    await conversation.edit("q", "What is this?", images=[photo])
    assert [turn.images for turn in (await Conversation.load(store, "old")).all_turns] == [(), (photo,)]


async def test_a_file_that_is_no_image_is_refused(store, tmp_path):
    (tmp_path / "bad.png").write_text("no image")
    with pytest.raises(ImageError, match=r"bad\.png"):
        await asyncio.to_thread(read_image, store.images, str(tmp_path / "bad.png"))
    with pytest.raises(ImageError, match=r"gone\.png cannot be read"):
        await asyncio.to_thread(read_image, store.images, str(tmp_path / "gone.png"))


# Export and import.


@pytest.fixture
async def elsewhere(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    store = await Store.open(tmp_path / "elsewhere" / "chats.db")
    yield store
    await store.close()


async def with_images(store, images):
    conversation = Conversation(store, "guide")
    await conversation.ask("What is this?", images=images)
    await conversation.edit(conversation.turns[0].id, "And this?")
    await answered(conversation)
    return conversation


@pytest.mark.slow
async def test_json_takes_the_images_along(store, elsewhere):
    photo, gone = await picture(store), await picture(store, "gone.png", 9)
    old = await with_images(store, [photo, gone])
    store.images.remove(gone.digest)
    new = parse_chat(to_json(old))
    await add_chat(elsewhere, new)
    again = await Conversation.load(elsewhere, new.chat.id)
    missing = msgspec.structs.replace(gone, digest="")
    assert [turn.images for turn in again.all_turns] == [(photo, missing), (photo, missing), ()]
    (message,) = messages_of(again.turns[:1], elsewhere.images.get)
    assert message.content == f"photo.png: {PLACE}\n(gone.png, an image, is missing here.)\n\nAnd this?"
    assert Path(message.media[0].path).read_bytes() == png()


async def test_an_image_of_a_stranger_is_checked(store):
    turn = {"id": "q", "role": "user", "content": "What?"}
    bad = {"name": "a\x1b.png", "width": 10**30, "height": -1, "data": base64.b64encode(b"no").decode()}
    good = {"name": "b.png", "width": 10**9, "height": 1, "data": base64.b64encode(png()).decode()}
    file = {"format": "edgechat", "chat": {}, "turns": [turn | {"images": [bad, good]}]}
    new = parse_chat(json.dumps(file))
    await add_chat(store, new)
    first, second = (await Conversation.load(store, new.chat.id)).turns[0].images
    assert (first.name, first.height, store.images.get(first.digest)) == ("a.png", 0, None)
    assert (second.width, second.height) == (64, 32)
    with pytest.raises(NotAChat, match="attachments"):
        parse_chat(json.dumps(file | {"turns": [turn | {"images": [good] * 101}]}))


async def test_images_in_messages_of_openai_are_read(store):
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    new = parse_chat(json.dumps([{"role": "user", "content": parts}]))
    await add_chat(store, new)
    conversation = await Conversation.load(store, new.chat.id)
    (turn,) = conversation.turns
    assert (turn.content, conversation.chat.title) == ("What?", "What?")
    assert [(image.name, image.size) for image in turn.images] == [("image 1", "64 × 32")]
    assert (await answered(conversation))[0].media[0].digest == turn.images[0].digest


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "not in the file"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,%"}}, "not in the file"),
        ({"type": "image_url", "image_url": "x"}, "neither text nor a user's image"),
        ({"type": "input_audio"}, "neither text nor a user's image"),
    ],
)
def test_other_parts_are_refused(part, why):
    with pytest.raises(NotAChat, match=why):
        parse_chat(json.dumps([{"role": "user", "content": [part]}]))


async def test_markdown_links_to_the_images_beside_it(store, tmp_path):
    photo, gone = await picture(store, "my [first] photo.png"), await picture(store, "gone.png", 9)
    conversation = await with_images(store, [photo, gone])
    store.images.remove(gone.digest)
    path = export.export_to_file(conversation, str(tmp_path / "a chat.md"))
    name = f"my-first-photo-{photo.digest[:8]}.png"
    text = path.read_text()
    assert f"![my first photo.png](a%20chat-images/{name})\n\n(Image: gone.png, 9 × 32)\n\nAnd this?" in text
    assert [file.name for file in (tmp_path / "a chat-images").iterdir()] == [name]
    assert (tmp_path / "a chat-images" / name).read_bytes() == png()


async def test_markdown_for_the_terminal_only_names_them(store):
    conversation = await with_images(store, [await picture(store)])
    text = to_markdown(conversation)
    assert "(Image: photo.png, 64 × 32)\n\nAnd this?" in text
    assert PLACE not in text + to_json(conversation) + conversation.chat.title
    assert [hit.snippet for hit in await store.search("this")] == ["And this?", "What is this?"]
