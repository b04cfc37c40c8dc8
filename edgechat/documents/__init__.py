"""Collections of documents: files in the user's folders, searched for answers to questions.

Input: paths and questions; output: passages and where they occur. Read `collection.py` first, then
`indexing.py` (from files to passages) and `retrieval.py` (from a question to passages for the model).
"""
