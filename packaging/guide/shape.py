"""The shape of a guide model, apart from torch so that export and evaluation can read it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of a model. Every dimension is a multiple of 32, so that every tensor can be Q8_0."""

    vocab: int = 8192
    dim: int = 256
    layers: int = 4
    heads: int = 4
    hidden: int = 704
    context: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = False
    """Whether the output shares the embedding."""

    @property
    def parameters(self) -> int:
        """How many numbers the model has learned."""
        layer = 4 * self.dim**2 + 3 * self.dim * self.hidden + 2 * self.dim
        return (1 if self.tied else 2) * self.vocab * self.dim + self.layers * layer + self.dim

    @property
    def size(self) -> str:
        """The same, as the guide says it."""
        return f"about {self.parameters / 1e6:.1f} million".replace(".0 ", " ")


GUIDE = Config()
# Guesses what the guide says next. One layer of one head: at this size a call costs what its layers number.
DRAFT = Config(dim=64, layers=1, heads=1, hidden=192, tied=True)
