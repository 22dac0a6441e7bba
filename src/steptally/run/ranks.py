"""Who this process is among the ranks of its job: numbers, coordinates, device, process groups."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from steptally.run.machine import numa_node_of_cpus


def has_process_group() -> bool:
    """Whether torch.distributed is initialised."""
    return bool(dist.is_available() and dist.is_initialized())


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of ranks: torch.distributed's, torchrun's or Slurm's.

    Slurm's own variables count only where no launcher has set RANK and WORLD_SIZE; a process that
    nothing launched is rank 0 of 1.
    """
    if has_process_group():
        return dist.get_rank(), dist.get_world_size()
    for rank_name, size_name in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        rank, size = os.environ.get(rank_name, ""), os.environ.get(size_name, "")
        if rank.isdigit() and size.isdigit():
            return int(rank), int(size)
    return 0, 1


def describe_rank() -> dict[str, object]:
    """This rank's row of the manifest: host, process, device and coordinates."""
    return {
        "rank": rank_and_world_size()[0],
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **_device(),
        **_coordinates(),
    }


def _device() -> dict[str, object]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {"device": "cpu", "device_uuid": None, "numa_node": numa_node_of_cpus()}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = getattr(properties, "uuid", None)
    return {
        "device": properties.name,
        "device_uuid": None if uuid is None else f"GPU-{uuid}",
        "numa_node": _numa_node_of_gpu(properties),
    }


def _numa_node_of_gpu(properties: Any) -> int | None:
    try:
        address = (
            f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}"
            f":{properties.pci_device_id:02x}.0"
        )
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (AttributeError, OSError, ValueError):  # an older torch, or not the kernel's device
        return None
    return node if node >= 0 else None  # the kernel says -1 where the firmware does not tell


def _coordinates() -> dict[str, int | None]:
    """Megatron's parallel ranks; None for each where Megatron's groups are not set up.

    megatron-core is never imported for this: a loop that uses it has done so.
    """
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return dict.fromkeys(("tp", "cp", "dp", "pp", "ep"))
    expert_group = state.get_expert_model_parallel_group(check_initialized=False)
    return {
        "tp": state.get_tensor_model_parallel_rank(),
        "cp": state.get_context_parallel_rank(),
        "dp": state.get_data_parallel_rank(),
        "pp": state.get_pipeline_model_parallel_rank(),
        "ep": None if expert_group is None else dist.get_rank(expert_group),
    }


def gather_ranks() -> tuple[list[dict[str, object]], dict[str, list[list[int]]]]:
    """On rank 0: every rank's row, and every process group by its description. Elsewhere: empty.

    Every rank must call it. Each group is sent by its first member only, so that a job of thousands
    of ranks sends each list of ranks once.
    """
    mine = (describe_rank(), _groups_led_by_this_rank())
    if not has_process_group():
        return [mine[0]], mine[1]
    everything: list[Any] | None = None
    if dist.get_rank() == 0:
        everything = [None] * dist.get_world_size()
    dist.gather_object(mine, everything, dst=0)
    if everything is None:
        return [], {}
    groups: dict[str, list[list[int]]] = {}
    for _, led in everything:
        for description, members in led.items():
            groups.setdefault(description, []).extend(members)
    return [row for row, _ in everything], groups


def _groups_led_by_this_rank() -> dict[str, list[list[int]]]:
    if not has_process_group():
        return {}
    led: dict[str, list[list[int]]] = {}
    # torch has no public list of groups; `_world.pg_group_ranks` maps each to {global: local rank}.
    for group, members in dist.distributed_c10d._world.pg_group_ranks.items():
        ranks = sorted(members, key=members.get)
        if ranks and ranks[0] == dist.get_rank():
            led.setdefault(group.group_desc, []).append(ranks)
    return led
