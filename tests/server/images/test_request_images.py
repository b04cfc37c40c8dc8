"""The files of requests' images: there as long as they are used, and bounded in all."""

import asyncio
import base64
import os
import threading
import time
from contextlib import suppress

import pytest

from edgechat.base.file_library import digest_of
from edgechat.base.images.image import Decoder, ImageLibrary
from edgechat.engine.types import ChatRequest, Message
from edgechat.server import media
from edgechat.server.media import RequestMedia, image_of, message_of
from tests.base.images.files import encoded, quadrants
from tests.server.fakes import FakeModels

FILES = [encoded(quadrants(16 * n, 16), "PNG") for n in range(1, 5)]
MODEL = FakeModels(sees=True)


def request_of(*files):
    parts = [image_of(base64.b64encode(data).decode(), f"x[{n}]") for n, data in enumerate(files)]
    return ChatRequest(id="x", messages=(message_of("user", parts),))


def stored(folder):
    return {one.digest for one in ImageLibrary(folder).stored()}


def make_old(folder, seconds=8 * 86400):
    for path in folder.iterdir():
        os.utime(path, (time.time() - seconds, time.time() - seconds))


async def test_an_image_that_comes_again_is_not_decoded_again(tmp_path, monkeypatch):
    n_decoded = 0
    inspect = Decoder.inspect

    def counted(self, *args, **more):
        nonlocal n_decoded
        n_decoded += 1
        return inspect(self, *args, **more)

    monkeypatch.setattr(Decoder, "inspect", counted)
    images = RequestMedia(tmp_path)
    for _ in range(3):
        async with images.placed(request_of(FILES[0], FILES[1], FILES[0]), MODEL, MODEL) as placed:
            first, second, third = placed.messages[0].media
            assert first == third != second
    assert n_decoded == 2
    assert stored(tmp_path) == {first.digest, second.digest}


async def test_old_images_are_deleted_but_none_in_use(tmp_path):
    images = RequestMedia(tmp_path)
    async with images.placed(request_of(FILES[0]), MODEL, MODEL) as placed:
        async with images.placed(request_of(FILES[0], FILES[1]), MODEL, MODEL):
            pass
        make_old(tmp_path)
        images.prune()
        assert stored(tmp_path) == {placed.messages[0].media[0].digest}
    images.prune()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_the_oldest_of_too_many_are_deleted(tmp_path, monkeypatch):
    images = RequestMedia(tmp_path)
    for n, data in enumerate(FILES):
        async with images.placed(request_of(data), MODEL, MODEL):
            path = next(tmp_path.glob(f"{digest_of(data)}.png"))
            os.utime(path, (1e9 + n, 1e9 + n) if n else None)  # the first is the newest
    monkeypatch.setattr(media, "MOST_SECONDS", 1e10)
    monkeypatch.setattr(media, "MOST_STORED", len(FILES[0]) + len(FILES[3]))
    async with images.placed(request_of(FILES[1]), MODEL, MODEL):
        os.utime(next(tmp_path.glob(f"{digest_of(FILES[1])}.png")), (1.0, 1.0))
        images.prune()
        assert stored(tmp_path) == {digest_of(FILES[0]), digest_of(FILES[1])}


@pytest.mark.slow
async def test_the_folder_is_pruned_as_it_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(media, "MOST_STORED", 16)
    images = RequestMedia(tmp_path)
    for data in FILES:
        async with images.placed(request_of(data), MODEL, MODEL):
            assert stored(tmp_path) == {digest_of(data)}


async def test_a_request_that_is_cancelled_lets_go_of_its_images(tmp_path, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    inspect = Decoder.inspect

    def slow(self, *args, **more):
        begun.set()
        goes_on.wait(10)
        return inspect(self, *args, **more)

    monkeypatch.setattr(Decoder, "inspect", slow)
    images = RequestMedia(tmp_path)

    async def use():
        async with images.placed(request_of(FILES[0]), MODEL, MODEL):
            raise AssertionError("it was cancelled")

    task = asyncio.create_task(use())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    goes_on.set()
    while images._used or not stored(tmp_path):
        await asyncio.sleep(0.01)
    make_old(tmp_path)
    images.prune()
    assert stored(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize("piece", [4, 64, 1 << 20])
async def test_base64_in_lines_and_pieces(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(media, "_PIECE", piece)
    for data in FILES:
        text = base64.encodebytes(data).decode()
        request = ChatRequest(id="x", messages=(message_of("user", [image_of(text, "x")]),))
        async with RequestMedia(tmp_path).placed(request, MODEL, MODEL) as placed:
            assert placed.messages[0].media[0].digest == digest_of(data)


async def test_requests_without_images_touch_no_disk(tmp_path):
    request = ChatRequest(id="x", messages=(Message("user", "Hi"),))
    async with RequestMedia(tmp_path / "images").placed(request, MODEL, MODEL) as placed:
        assert placed == request
    assert list(tmp_path.iterdir()) == []
