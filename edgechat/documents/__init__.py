"""Collections of documents: files in the folders that a user names, found again by the words of a question.

In go paths and questions; out come passages, each with the place that it is from. Read `collection.py` first,
then `indexing.py` (files to passages) and `retrieval.py` (a question to what the model is given).
"""
