"""Where we are in the data: every sample once per epoch."""

from holdfast.data.positioned import Positioned
from holdfast.data.seeding import sample_seed

__all__ = ["Positioned", "sample_seed"]
