"""The frozen program serves other programs, held to a schema too."""

import json
import re
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[[str, dict[str, Any] | None], Any]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["quant", "draft"]}, "bits": {"type": "integer", "maximum": 99}},
    "required": ["kind", "bits"],
    "additionalProperties": False,
}


@pytest.fixture
def ask(newcomer):
    """Start the server with the guide, and return what asks it; it has to end well."""
    server = newcomer.start("serve", "guide", "--port", "0")
    assert server.stdout is not None
    said = ""
    while "OPENAI_API_KEY" not in said:
        line = server.stdout.readline().decode()
        assert line, server.communicate()
        said += line
    address, kept = re.search(r"http://[\d.]+:\d+", said), re.search(r"stored in\s+(.+)\.\s", said)
    assert address is not None
    assert kept is not None
    key = Path(kept[1]).read_text().strip()

    def asked(path, body=None):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(address[0] + path, data, headers)) as answer:
            return json.load(answer)

    yield asked
    server.send_signal(signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGINT)
    _, complaint = server.communicate(timeout=30)
    assert server.returncode == 0, complaint
    assert b"Traceback" not in complaint


def test_other_programs_are_answered_and_held_to_a_schema(ask):
    assert [one["id"] for one in ask("/v1/models")["data"]] == ["guide"]
    question = {"model": "guide", "messages": [{"role": "user", "content": "What is a quant?"}]}
    answer = ask("/v1/chat/completions", question | {"temperature": 0})
    assert "fewer bits" in answer["choices"][0]["message"]["content"]
    held = {"type": "json_schema", "json_schema": {"name": "kind", "schema": SCHEMA, "strict": True}}
    answer = ask("/v1/chat/completions", question | {"response_format": held})
    found = json.loads(answer["choices"][0]["message"]["content"])
    assert found["kind"] in ("quant", "draft")
    assert isinstance(found["bits"], int)
