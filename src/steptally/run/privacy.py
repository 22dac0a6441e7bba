"""Keeps secrets out of the manifest: what is written down of the environment and the command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_ALLOWED_PREFIXES = (
    "NCCL_",
    "CUDA_",
    "TORCH_",
    "TORCHELASTIC_",
    "PYTORCH_",
    "NVTE_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "HIP_",
    "ROCR_",
    "UCX_",
)
_ALLOWED_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NNODES",
    "SLURM_NTASKS", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK", "SLURM_TOPOLOGY_ADDR",
})  # fmt: skip
_SECRET_WORDS = frozenset(
    {"token", "key", "apikey", "secret", "password", "passwd", "credential", "credentials", "auth"}
)
_HIDDEN = "<hidden>"


def is_secret(name: str) -> bool:
    """Whether an option or variable of this name may hold a secret.

    >>> is_secret("wandb-api-key"), is_secret("tokenizer-type")
    (True, False)
    """
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a step (NCCL's, CUDA's, PyTorch's, …), by name, sorted."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES)) and not is_secret(name)
    }


def without_secrets(command: Iterable[str]) -> list[str]:
    """A command line in which the values of options with secret names are hidden.

    >>> without_secrets(["train.py", "--wandb-api-key", "abc", "--hub-token=def", "--lr", "1e-3"])
    ['train.py', '--wandb-api-key', '<hidden>', '--hub-token=<hidden>', '--lr', '1e-3']
    """
    shown: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-")
        if hide_next and not is_option:
            shown.append(_HIDDEN)
        elif equals and is_secret(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(word)
        hide_next = is_option and not equals and is_secret(name)
    return shown
