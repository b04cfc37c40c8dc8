"""The server does what its description says: requests made from it, by schemathesis, against the program."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edgechat.server.protocol.body import decode
from edgechat.server.protocol.openai_chat import ChatBody
from tests import scripted
from tests.server.program import served

pytestmark = pytest.mark.slow

SETTINGS = """
[checks]
# A description cannot say which fields contradict each other.
positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "413"]
# What is too large is not looked at.
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413", "415", "422"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    script = scripted.write(folder / "default.gguf", reply="Hi.")
    with served(script, "--store-responses", "--docs", "all", home=folder / "home") as server:
        yield server


@pytest.mark.parametrize(
    ("phases", "n_examples"),
    [
        pytest.param("examples,fuzzing", 3, marks=pytest.mark.alone),
        pytest.param("examples,coverage,fuzzing", 100, marks=pytest.mark.soak),
    ],
)
def test_the_server_keeps_to_its_description(server, tmp_path, phases, n_examples):
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("st"),
            "run",
            f"{server.url}/openapi.json",
            f"--header=Authorization: Bearer {server.key}",
            f"--phases={phases}",
            f"--max-examples={n_examples}",
            "--seed=7",
            "--no-color",
            "--workers=2",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "Tested: 29" in done.stdout
    assert server.figure("crashes_total") == 0
    assert server.figure("running") == 0


def test_every_field_is_described_as_it_is_decoded(server):
    described = server.ask("/openapi.json")[1]["components"]["schemas"]["ChatBody"]
    assert described["properties"].keys() == set(ChatBody.__struct_fields__)
    assert described["required"] == ["messages"]
    body = {"model": "x", "messages": [{"role": "user", "content": "x"}]}
    assert decode(json.dumps(body).encode(), ChatBody).n_choices == 1
    assert msgspec.json.decode(json.dumps(described))["title"] == "ChatBody"
