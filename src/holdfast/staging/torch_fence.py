"""The fence: no optimizer may change weights while a copy of them is unfinished.

It stands in the step pre-hook that torch calls for every optimizer, so `opt.step()` stays the user's line,
and one that was made anew inside the loop meets the fence, too. It waits on an event, never spins, and never
waits without a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Fence:
    """Runs `before_update` in front of every step of those `optimizers`, `after_update` behind it.

    Both may run more than once per step (a subclass that calls super().step() fires hooks twice) and must
    be idempotent. When a GradScaler skips a step, neither runs.
    """

    def __init__(
        self,
        optimizers: Container[torch.optim.Optimizer],
        before_update: Callable[[], None],
        after_update: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        # A compiled step would otherwise be traced through our waiting.
        opaque: Any = torch.compiler.disable
        before: Callable[[], None] = opaque(before_update)
        after: Callable[[torch.optim.Optimizer], None] = opaque(after_update)

        def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
            if optimizer in optimizers:
                before()

        def post(optimizer: Any, args: Any, kwargs: Any) -> None:
            if optimizer in optimizers:
                after(optimizer)

        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(pre),
            register_optimizer_step_post_hook(post),
        ]

    def remove(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
