"""The last resort when no slot fits in memory: produce an image piece by piece from the live tensors.

Only correct while training stands still: the caller blocks until the whole image has been written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdfast.format.image import ImageLayout
from holdfast.staging.slots import HostMemory, anonymous_memory
from holdfast.staging.torch_copy import Placed, source_of


class StreamedImage:
    concurrent = False

    def __init__(
        self, name: str, layout: ImageLayout, places: Sequence[Placed], tensors: Sequence[torch.Tensor]
    ) -> None:
        self.name = name
        self.size = layout.size
        self._layout = layout
        order = sorted(range(len(places)), key=lambda i: places[i].start)
        self._pieces = [(places[i], tensors[i]) for i in order]
        self._memory: HostMemory | None = None
        self._current: tuple[Placed, torch.Tensor] | None = None

    def view(self, start: int, stop: int) -> memoryview:
        if self._memory is None or len(self._memory.view) < stop - start:
            self._memory = anonymous_memory(stop - start)
        window = self._memory.view[: stop - start]
        header = self._layout.header[start:stop]
        window[: len(header)] = header
        target = torch.frombuffer(window, dtype=torch.uint8)
        for place, tensor in self._pieces:
            begin, end = max(place.start, start), min(place.stop, stop)
            if begin < end:
                raw = self._bytes_of(place, tensor)
                target[begin - start : end - start] = raw[begin - place.start : end - place.start]
        return window

    def _bytes_of(self, place: Placed, tensor: torch.Tensor) -> torch.Tensor:
        if self._current is None or self._current[0] is not place:
            with torch.no_grad():
                plain = source_of(tensor.detach()).resolve_conj().resolve_neg().cpu().contiguous()
            # One tensor at a time: this is what keeps the memory small.
            self._current = (place, plain.reshape(-1).view(torch.uint8))
        return self._current[1]
