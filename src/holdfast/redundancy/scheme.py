"""How the nodes of a job protect each other, as a user writes it: "single", "partner", "xor:4", "rs:6+2"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import SetupError

# Sets may grow to twice their smallest size less one, and GF(256) has points for 256 members.
LARGEST_SET = 128
_XOR = re.compile(r"xor:([0-9]{1,4})", re.ASCII)
_RS = re.compile(r"rs:([0-9]{1,4})\+([0-9]{1,4})", re.ASCII)
_FORMS = '"single", "partner", "xor:N" (sets of N nodes) or "rs:N+K" (sets of N+K nodes, any K may be lost)'


@dataclass(frozen=True)
class Scheme:
    """Nodes form sets of at least `set_size`; each set survives the loss of any `failures` of its nodes.

    Every node keeps its own data whole. On top of its B bytes it stores, in a set of S nodes,

    - single: nothing.
    - partner: a copy of its neighbour's data. 2 B.
    - xor, rs: its share of the parity. B·S/(S-K) in all, where K is `failures`, 1 for xor.
    """

    kind: Literal["single", "partner", "xor", "rs"]
    set_size: int
    failures: int

    def __str__(self) -> str:
        if self.kind == "xor":
            return f"xor:{self.set_size}"
        if self.kind == "rs":
            return f"rs:{self.set_size - self.failures}+{self.failures}"
        return self.kind


SINGLE = Scheme("single", 1, 0)
PARTNER = Scheme("partner", 2, 1)


def parse_scheme(text: str | Scheme) -> Scheme:
    """ "rs:6+2" -> sets of 8 nodes of which any 2 may be lost."""
    if isinstance(text, Scheme):
        return text
    word = text.strip().lower()
    if word in ("single", "partner"):
        return SINGLE if word == "single" else PARTNER
    if match := _XOR.fullmatch(word):
        return _checked(Scheme("xor", int(match[1]), 1), text)
    if match := _RS.fullmatch(word):
        return _checked(Scheme("rs", int(match[1]) + int(match[2]), int(match[2])), text)
    raise SetupError(f"cannot read {text!r} as a redundancy scheme", hint=f"write {_FORMS}")


def _checked(scheme: Scheme, text: str) -> Scheme:
    if scheme.failures < 1 or scheme.set_size <= scheme.failures:
        raise SetupError(
            f"{text!r} protects nothing: a set needs at least one node beside those it may lose",
            hint='"xor:4" and "rs:6+2" are good choices, "single" means no protection',
        )
    if scheme.set_size > LARGEST_SET:
        raise SetupError(
            f"{text!r} asks for sets of {scheme.set_size} nodes; {LARGEST_SET} is the most",
            hint="small sets are also rebuilt faster: 4 to 16 nodes",
        )
    return scheme
