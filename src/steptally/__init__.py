"""steptally accounts for a training step of a Megatron-style LLM.

The command line is `steptally`; from Python, `steptally.job` describes a job, `steptally.predict`
counts it, `steptally.Recorder` records your own training loop.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptally.run.record import Recorder as Recorder

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Recorder` is imported at its first use: it needs torch, which nothing else here does."""
    if name == "Recorder":
        from steptally.run.record import Recorder

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
