"""The memory of every rank: what lives for the run, an iteration, a micro-batch, an operation."""
