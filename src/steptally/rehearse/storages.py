"""When each tensor's memory was allocated and freed.

A storage is followed from the operator that returned it first until Python and autograd have let go
of it. Time is counted in moments: one for every storage made or freed. What a storage is for,
`rehearse.lifetimes` says afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from steptally.rehearse.place import Place


@dataclass(slots=True)
class Allocation:
    """One storage: bytes, where and in which phase it was made, and the moments of its life.

    `freed` is None while it lives. `lifetime` is set where Megatron itself says what it is;
    `is_weight` holds of parameters and of their copies in another dtype.
    """

    size_bytes: int
    place: Place
    phase: str
    made: int
    freed: int | None = None
    lifetime: str = ""
    is_weight: bool = False


class Storages:
    """The ledger of one rehearsal: `moment` is now, `live_bytes` what is allocated now."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.moment = 0
        self.live_bytes = 0
        self._live: dict[int, tuple[Allocation, weakref.ref[Any]]] = {}

    def see(self, tensor: torch.Tensor, place: Place, phase: str) -> None:
        """Note the tensor's storage, unless it is known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._live:
            allocation = self._make(storage.nbytes(), place, phase)
            self._live[key] = (allocation, weakref.ref(storage, lambda _: self._free(key)))

    def of(self, tensor: torch.Tensor) -> Allocation | None:
        """The allocation that holds a tensor; None for one that was never seen."""
        known = self._live.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def forget_everything(self) -> None:
        """Whatever still lives stays alive for good: stop following it."""
        self._live.clear()

    @contextmanager
    def resizing_followed(self, mode: FakeTensorMode) -> Iterator[None]:
        """Notice storages that are emptied or filled again in place.

        Megatron-Core frees outputs that it will recompute by `untyped_storage().resize_(0)`, and
        copies what it recomputed into them. Its copies bypass the cache of `mode`, whose keys would
        keep the storages alive.
        """
        original, original_copy = torch.UntypedStorage.resize_, torch.UntypedStorage.copy_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            known = self._live.get(storage._cdata)
            result = original(storage, size)
            if known is not None and known[0].size_bytes != size:
                self._resized(storage, known[0], size)
            return result

        def copy(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            before, mode.cache_enabled = mode.cache_enabled, False
            try:
                return original_copy(storage, *args, **kwargs)
            finally:
                mode.cache_enabled = before

        torch.UntypedStorage.resize_, torch.UntypedStorage.copy_ = resize, copy
        try:
            yield
        finally:
            torch.UntypedStorage.resize_, torch.UntypedStorage.copy_ = original, original_copy

    def _make(self, size_bytes: int, place: Place, phase: str) -> Allocation:
        self.moment += 1
        self.live_bytes += size_bytes
        allocation = Allocation(size_bytes, place, phase, self.moment)
        self.allocations.append(allocation)
        return allocation

    def _end(self, allocation: Allocation) -> None:
        self.moment += 1
        self.live_bytes -= allocation.size_bytes
        allocation.freed = self.moment

    def _resized(self, storage: torch.UntypedStorage, before: Allocation, size: int) -> None:
        self._end(before)
        after = self._make(size, before.place, before.phase)
        self._live[storage._cdata] = (after, self._live[storage._cdata][1])

    def _free(self, key: int) -> None:
        known = self._live.pop(key, None)
        if known is not None:
            self._end(known[0])
