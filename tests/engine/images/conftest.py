"""What the tests of pictures and of sounds share."""

import pytest

from edgechat.engine.prompt.template import ChatTemplate


@pytest.fixture(scope="module")
def template():
    template = ChatTemplate(None, bos="<s>", eos="<|im_end|>")
    yield template
    template.close()
