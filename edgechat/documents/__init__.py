"""Collections of documents: files in folders that a user names, searched for the answer to a question.

Input: paths and questions; output: passages with their places. Read `collection.py` first, then `indexing.py`
(from files to passages) and `retrieval.py` (from a question to passages for the model).
"""
