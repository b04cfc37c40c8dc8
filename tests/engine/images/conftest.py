"""What the tests of pictures and of sounds share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgechat.engine.prompt.template import ChatTemplate


@pytest.fixture(scope="module")
def template() -> Iterator[ChatTemplate]:
    template = ChatTemplate(None, bos="<s>", eos="<|im_end|>")
    yield template
    template.close()
