import pytest
from textual.style import Style

from edgechat.tui.markdown.document import Document, clickable


def links_of(text):
    spans = [span for line in Document(text).lines(200) for span in line.content.spans]
    return [span.style.link for span in spans if isinstance(span.style, Style) and span.style.link]


@pytest.mark.parametrize(
    ("target", "works"),
    [
        *(("https://x.y/z?a=1#b", True), ("HTTP://x.y", True), ("mailto:a@b.c", True)),
        *(("file:///etc/passwd", False), ("javascript:alert(1)", False), ("ssh://x", False), ("x.y", False)),
        *(
            ("https://x\x1b]8;;", False),
            ("https://x y", False),
            ("https://\u202ex", False),
            ("https://", False),
        ),
        *(("https://" + "x" * 3000, False), ("https://x\n", False)),
    ],
)
def test_only_addresses_of_the_web_and_of_mail_can_be_clicked(target, works):
    assert clickable(target) is works


def test_a_link_is_told_to_the_terminal_and_shows_where_it_leads():
    text = "[paypal.com](http://evil.example/login) [x.y](https://x.y/) <https://z.z> [f](file:///etc)"
    (line,) = Document(text).lines(200)
    assert line.content.plain == "paypal.com (http://evil.example/login) x.y https://z.z [f](file:///etc)"
    assert links_of(text) == ["http://evil.example/login", "https://x.y/", "https://z.z"]
