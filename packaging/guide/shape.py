"""The shape of a guide model, in a module without torch so that export and evaluation can import it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of a model. All dimensions are multiples of 32, so that every tensor can be Q8_0."""

    vocab: int = 8192
    dim: int = 256
    layers: int = 4
    heads: int = 4
    hidden: int = 704
    context: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = False
    """Whether the output shares the embedding's weights."""

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        layer = 4 * self.dim**2 + 3 * self.dim * self.hidden + 2 * self.dim
        return (1 if self.tied else 2) * self.vocab * self.dim + self.layers * layer + self.dim

    @property
    def size(self) -> str:
        """The number of parameters in words, as the guide states it."""
        return f"about {self.parameters / 1e6:.1f} million".replace(".0 ", " ")


GUIDE = Config()
# Predicts the guide's tokens. It has a single layer with a single head, because at this size, the number of
# layers determines the cost.
DRAFT = Config(dim=64, layers=1, heads=1, hidden=192, tied=True)
