"""Text extraction from documents of all kinds.

Input: a path or bytes; output: an `Extracted` (text with Markdown headings, and where its pages start), or a
DocumentError. HTML, notebooks, PDF, DOCX and EPUB are read in a child process. Read `reader.py` first, then
`child.py`.
"""
