"""edgechat: chat with a language model on your own machine."""

__version__ = "0.1.0"
