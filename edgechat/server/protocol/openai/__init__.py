"""OpenAI's older endpoints: chat completions, completions, embeddings, and the list of models; and reranking.

generation.py   the fields that chats and completions share; messages.py, texts.py: what they are asked
chat.py         the body of a chat, completions.py that of a completion, embeddings.py of embeddings
reranking.py    documents ranked for a query, for which OpenAI has no endpoint
answers.py      several choices in chunks; chat_answer.py: those of a chat; usage.py, logprobs.py: their parts
"""
