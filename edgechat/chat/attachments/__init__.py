"""Texts that are sent with a question: the files and folders that it names, and long pastes.

In come paths and pasted text; out goes an `Attachment`, or an AttachmentError. Read `reading.py` first, then
`mentions.py`.
"""
