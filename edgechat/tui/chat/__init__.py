"""The chat: transcript, prompt box, status, and the conversations behind them."""
