"""From a file to its text, whatever the file is.

In: a path, or bytes. Out: `Extracted`, text with Markdown headings, and where its pages begin; or a
DocumentError. Text, Markdown, code and CSV are read here; HTML, notebooks, PDF, DOCX and EPUB in a child
process. Read `reader.py` first, then `child.py`.
"""
