"""`edgechat run`: one question, or a conversation line by line. Answers to stdout, all else to stderr.

The plain mode for screen readers (`edgechat --screen-reader`) is the same conversation, told in sentences.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from dataclasses import replace

from edgechat.base.errors import EdgechatError, ModelNotFound, StoreError
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.cli.chat.chat_loop import ChatLoop, RunOptions
from edgechat.cli.chat.conversation import conversation, offering_not_to_keep
from edgechat.cli.chat.event_loop import Background
from edgechat.cli.terminal_io import note
from edgechat.settings import Settings

__all__ = ["PIPED_LIMIT", "RunOptions", "run"]

_SIGNALLED = 128  # what shells add to the number of the signal that ended a program
PIPED_LIMIT = 16 * 2**20
"""Bytes read from a pipe; more than any context holds."""


def run(options: RunOptions) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    prompt = None if options.converse else _whole_prompt(None if options.prompt == "-" else options.prompt)
    going_on = options.wanted.as_option
    if prompt is None and options.json:
        raise EdgechatError(
            "--json requires a prompt.", hint='For example: edgechat run MODEL "PROMPT" --json'
        )
    if prompt is not None and not prompt.strip():
        raise EdgechatError(
            "The prompt is empty.", hint=f'For example: edgechat run MODEL "PROMPT"{going_on}'
        )
    options = replace(options, prompt=prompt)
    _heed_signals()
    background = Background()
    session = _session(options)
    try:
        said = background.run(session.read_settings())
        with offering_not_to_keep(options.wanted):
            background.run(session.store())
        _hold(options, said, session, background)
    finally:
        background.run(session.close())
    return 0


def _heed_signals() -> None:
    """Let SIGTERM and a hang-up end the program as Ctrl+C does, every word saved."""
    # Windows has no SIGHUP, and nohup has it ignored.
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number: int, _: object) -> None:
        # A shell and the kernel both tell of a closed terminal, and both must not cut short what saves.
        for other in heeded:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(_SIGNALLED + number)

    for number in heeded:
        signal.signal(number, leave)


def _session(options: RunOptions) -> ChatSession:
    services = SessionServices.real(
        context=options.context, anyway=options.anyway, draft=options.draft, backend=options.backend
    )
    session = ChatSession(
        services,
        options.model,
        front="run",
        options=options.generation,
        keep=options.wanted.keep,
        needs_store=not options.wanted.is_new,
        prewarm=options.prompt is None,  # nobody waits for the next question after the only one
    )
    session.on_note = note
    return session


def _hold(options: RunOptions, said: Settings, session: ChatSession, background: Background) -> None:
    """Hold the conversation that is wanted."""
    system = options.system_of(said) if options.wanted.is_new else options.system
    talk = background.run(conversation(session, options.wanted, system))
    try:
        background.run(session.engine())
    except ModelNotFound as error:
        if options.model is None or options.wanted.is_new or options.prompt is not None:
            raise
        # Whoever goes on easily forgets that the model comes first.
        words = ["edgechat", "run", talk.chat.model, options.model]
        meant = shlex.join(words) + options.wanted.as_option
        raise ModelNotFound(error.message, hint=f"Did you mean: {meant}") from error
    spoken = options.screen_reader or said.screen_reader
    ChatLoop(session, talk, options, background, spoken=spoken).main(options.prompt)
    if options.converse:  # as the app does
        with contextlib.suppress(StoreError):
            background.run(session.remember_model())


def _whole_prompt(prompt: str | None) -> str | None:
    """Return the prompt with what is piped in after it; None where a person is there to type."""
    if sys.stdin is None or sys.stdin.isatty():
        return prompt
    piped = sys.stdin.buffer.read(PIPED_LIMIT + 1)
    if len(piped) > PIPED_LIMIT:
        raise EdgechatError(
            f"More than {PIPED_LIMIT // 2**20} MiB were piped in, which is more than any context can hold.",
            hint="Pipe in only the relevant part.",
        )
    text = piped.decode("utf-8", "replace")
    return "\n\n".join(part for part in (prompt, text) if part) if prompt or text else prompt or ""
