"""steptally accounts for a training step of a Megatron-style LLM.

The command line is `steptally`; from Python, `steptally.job` describes a job, `steptally.predict`
counts it, `steptally.Recorder` records your own training loop.
"""

__version__ = "0.1.0"
