"""Screens on top of the chat: help, choosers, dialogs, and text to read."""
