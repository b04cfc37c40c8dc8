"""Ask a folder: documents, their text, and what of it answers a question.

In: files and folders of any kind. Out: their text, in `reading`: whatever is wrong with a file, there is its
text or an error within seconds.
"""
