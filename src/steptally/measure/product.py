"""One matrix product, C[m,n] = A[m,k] · B[k,n], and its FLOPs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products of one shape; `flops` is 2·m·n·k·batch, less only where a kernel skips."""

    m: int
    n: int
    k: int
    batch: int
    flops: int

    @property
    def elements(self) -> int:
        """Of both operands and the result, each once."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


def product(m: int, n: int, k: int, batch: int = 1) -> Product:
    """The product of that shape: a multiplication and an addition for each of its m·n·k terms.

    >>> product(4, 16, 8).flops
    1024
    """
    return Product(m=m, n=n, k=k, batch=batch, flops=2 * m * n * k * batch)
