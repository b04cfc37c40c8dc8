"""Screens over the chat: help, choosers, dialogs, texts to read."""
