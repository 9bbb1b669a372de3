"""One line in a training script: `sampler = hubspoke.torch.hinted(sampler, locate=...)`."""

from hubspoke.frontends.torch.hinted import HintedOrder, hinted
from hubspoke.frontends.torch.meter import Meter

__all__ = ["HintedOrder", "Meter", "hinted"]
