"""Which block follows from which: the codes by name, and how lost blocks are combined from others.

The name is stored with the parity. NumPy alone decodes each of them: no optional library is ever the reason
that data is lost. Blocks 0..n-1 are data, n..n+k-1 are parity.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from holdfast.errors import RestoreError, SetupError
from holdfast.redundancy.cauchy import cauchy_rows
from holdfast.redundancy.galois import Matrix, dot, invert

CodeName = Literal["xor", "cauchy-bits"]
CODE_NAMES: tuple[str, ...] = get_args(CodeName)


@dataclass(frozen=True)
class Combination:
    """Each output block is the sum over inputs of coefficient × block, in the arithmetic of `code`."""

    code: Code
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    coefficients: Matrix  # one row per output, one column per input


@dataclass(frozen=True)
class Code:
    """`data` blocks and `parity` blocks, any `data` of which give back all the others."""

    name: CodeName
    data: int
    parity: int

    def __post_init__(self) -> None:
        most_parity = 1 if self.name == "xor" else 255
        if not (self.data >= 1 and 1 <= self.parity <= most_parity and self.data + self.parity <= 256):
            raise SetupError(f"the code {self.name} has no {self.data}+{self.parity} blocks")

    @property
    def rows(self) -> Matrix:
        """One row of coefficients per parity block."""
        if self.name == "cauchy-bits":
            return cauchy_rows(self.data, self.parity)
        return ((1,) * self.data,)

    def encoding(self, rows: Sequence[int] | None = None) -> Combination:
        """Parity blocks from all data blocks; `rows` picks some of them by their number in 0..k-1."""
        wanted = range(self.parity) if rows is None else rows
        return self.combination(range(self.data), [self.data + row for row in wanted])

    def combination(self, have: Collection[int], want: Collection[int]) -> Combination:
        """How to get the blocks `want` from some of the blocks `have`; RestoreError if they are too few."""
        return _combination(self, tuple(sorted(set(have))), tuple(want))


@lru_cache(maxsize=1024)
def _combination(code: Code, have: tuple[int, ...], want: tuple[int, ...]) -> Combination:
    # Data first: what is there needs no arithmetic. Then row 0, which is plain XOR in our own codes.
    inputs = have[: code.data]
    if len(inputs) < code.data:
        raise RestoreError(
            f"{len(have)} of {code.data + code.parity} blocks are left, {code.data} are needed",
            hint="restore from another tier",
        )
    known = [block for block in inputs if block < code.data]
    parity = [code.rows[block - code.data] for block in inputs[len(known) :]]
    missing = [block for block in range(code.data) if block not in known]
    solved = _solve(parity, known, missing)
    as_sums = {block: tuple(int(block == i) for i in inputs) for block in known}
    as_sums.update(zip(missing, solved, strict=True))

    def row_of(block: int) -> tuple[int, ...]:
        if block < code.data:
            return as_sums[block]
        factors = code.rows[block - code.data]
        return tuple(dot(factors, [as_sums[j][at] for j in range(code.data)]) for at in range(len(inputs)))

    coefficients = tuple(row_of(block) for block in want)
    used = [at for at in range(len(inputs)) if any(row[at] for row in coefficients)]
    return Combination(
        code,
        tuple(inputs[at] for at in used),
        want,
        tuple(tuple(row[at] for at in used) for row in coefficients),
    )


def _solve(parity: Sequence[Sequence[int]], known: Sequence[int], missing: Sequence[int]) -> Matrix:
    """Each missing data block as a sum of the known ones and of as many parity blocks as are missing."""
    answers = invert([[row[block] for block in missing] for row in parity])
    solved = []
    for answer in answers:
        from_known = [dot(answer, [row[block] for row in parity]) for block in known]
        solved.append((*from_known, *answer))
    return tuple(solved)
