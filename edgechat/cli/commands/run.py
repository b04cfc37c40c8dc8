"""`edgechat run`: one question, or a conversation line by line. Answers to stdout, all else to stderr.

The plain mode for screen readers (`edgechat --screen-reader`) is the same conversation, in whole sentences.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from dataclasses import replace

import msgspec

from edgechat.base.errors import EdgechatError, ModelNotFound, StoreError
from edgechat.base.process.file_decoder import MAX_FILE_BYTES
from edgechat.base.text import is_binary
from edgechat.chat.reply.chat_tools import choice
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.cli.chat.chat_loop import ChatLoop, RunOptions
from edgechat.cli.chat.conversation import chosen_conversation, hinting_at_no_store
from edgechat.cli.chat.event_loop import Background
from edgechat.cli.terminal_io import note, read_piped
from edgechat.settings import Settings

__all__ = ["PIPED_LIMIT", "SIGNAL_EXIT", "RunOptions", "run"]

SIGNAL_EXIT = 128  # shells add it to the number of the signal that ended a program
_STDIN = "-"
PIPED_LIMIT = 16 * 2**20
"""Bytes read from a pipe; more than any context holds."""


def run(options: RunOptions) -> None:
    """Run the command. Raises EdgechatError."""
    if _STDIN in options.images:
        options = _with_piped_image(options)
        prompt = options.prompt
    else:
        prompt = None if options.interactive else _whole_prompt(options.prompt)
    if prompt is None and options.json:
        raise EdgechatError(
            "--json requires a prompt.", hint='For example: edgechat run MODEL "PROMPT" --json'
        )
    if prompt is not None and not prompt.strip():
        example = f'edgechat run MODEL "PROMPT"{options.choice.as_option}'
        raise EdgechatError("The prompt is empty.", hint=f"For example: {example}")
    options = replace(options, prompt=prompt)
    _exit_on_signals()
    background = Background()
    session = _session(options)
    try:
        settings = background.run(session.read_settings())
        if options.tools is not None:
            tools = choice(options.tools, background.run(session.tools.known()))
            session.options = msgspec.structs.replace(session.options, tools=tools)
        with hinting_at_no_store(options.choice):
            background.run(session.store())
        _run_session(options, settings, session, background)
    finally:
        background.run(session.close())


def _exit_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the program as Ctrl+C does, with everything saved."""
    # Windows has no SIGHUP, and nohup ignores it.
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number: int, _: object) -> None:
        # Both the shell and the kernel report a closed terminal; the second signal must not stop the saving.
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(SIGNAL_EXIT + number)

    for number in handled:
        signal.signal(number, leave)


def _session(options: RunOptions) -> ChatSession:
    services = SessionServices.real(
        context=options.context,
        anyway=options.anyway,
        draft=options.draft,
        backend=options.backend,
        vision=options.vision,
        adapters=options.generation.adapters,
        workers=options.workers,
        runtime_quant=options.runtime_quant,
    )
    session = ChatSession(
        services,
        options.model,
        front="run",
        options=options.generation,
        keep=options.choice.keep,
        needs_store=not options.choice.is_new,
        prewarm=options.prompt is None,  # no question follows a single prompt
    )
    session.on_note = note
    return session


def _run_session(
    options: RunOptions, settings: Settings, session: ChatSession, background: Background
) -> None:
    choice = options.choice
    system = options.new_system(settings) if choice.is_new else options.system
    conversation = background.run(chosen_conversation(session, choice, system))
    try:
        background.run(session.engine())
    except ModelNotFound as error:
        if options.model is None or choice.is_new or options.prompt is not None:
            raise
        # With --continue, the model before the prompt is easily forgotten.
        command = shlex.join(["edgechat", "run", conversation.chat.model, options.model])
        raise ModelNotFound(error.message, hint=f"Did you mean: {command}{choice.as_option}") from error
    spoken = options.screen_reader or settings.screen_reader
    ChatLoop(session, conversation, options, background, spoken=spoken).main(options.prompt)
    if options.interactive:  # as the app does
        with contextlib.suppress(StoreError):
            background.run(session.remember_model())


def _with_piped_image(options: RunOptions) -> RunOptions:
    """Return the options with the image that is piped in, instead of a dash."""
    example = 'For example: edgechat run MODEL "What is this?" --image - < photo.png'
    if options.images.count(_STDIN) > 1:
        raise EdgechatError("Only one image can be piped in.", hint=example)
    if options.prompt in (None, _STDIN):
        raise EdgechatError("An image that is piped in requires a prompt.", hint=example)
    if sys.stdin is None or sys.stdin.isatty():
        raise EdgechatError("No image is piped in.", hint="To send a file: --image FILE")
    piped = read_piped(MAX_FILE_BYTES + 1)
    return replace(options, images=[piped if image == _STDIN else image for image in options.images])


def _whole_prompt(prompt: str | None) -> str | None:
    """Return the prompt followed by the text that is piped in; None if a person is to type it."""
    if prompt == _STDIN:
        prompt = None
    if sys.stdin is None or sys.stdin.isatty():
        return prompt
    piped = read_piped(PIPED_LIMIT + 1)
    if len(piped) > PIPED_LIMIT:
        raise EdgechatError(
            f"More than {PIPED_LIMIT // 2**20} MiB were piped in, which is more than any context can hold.",
            hint="Pipe in only the relevant part.",
        )
    if is_binary(piped):
        raise EdgechatError(
            "What was piped in is not text.",
            hint='To send an image: edgechat run MODEL "What is this?" --image - < photo.png',
        )
    text = piped.decode("utf-8", "replace")
    return "\n\n".join(part for part in (prompt, text) if part) if prompt or text else prompt or ""
