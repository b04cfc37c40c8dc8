"""The chat: transcript, prompt box, status, and the conversation behind them."""
