"""Makes the recordings of this folder: tiny GPTs on real Megatron-Core ranks, one step traced.

    torchrun --standalone --nproc-per-node 4 tests/data/make_recordings.py tp2_dp2
    torchrun --standalone --nproc-per-node 2 tests/data/make_recordings.py pp2

See README.md. Tests hold exact numbers of what lies here, so a new recording needs new numbers.
"""

import gzip
import sys
from pathlib import Path

import torch

import steptally
from steptally.engine.adapt import adapt
from steptally.engine.availability import find_parts
from steptally.engine.cpu import megatron_on_cpu
from steptally.job import job_from_settings

SMALL = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 64,
    "swiglu": True,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "vocab_size": 256,
    "seq_length": 16,
    "micro_batch_size": 1,
    "global_batch_size": 2,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "use_distributed_optimizer": True,
    "lr": 0.002,
}
JOBS = {
    "tp2_dp2": {
        **SMALL,
        "world_size": 4,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "overlap_grad_reduce": True,
    },
    "pp2": {**SMALL, "world_size": 2, "num_layers": 2, "pipeline_model_parallel_size": 2},
}


def main(name):
    """Train four steps, of which the third is traced, and pack the traces as small as they go."""
    from steptally.engine.groups import initialize_groups, seed_this_rank
    from steptally.run.data import open_source
    from steptally.run.train import prepare, train

    torch.set_num_threads(1)
    job = adapt(job_from_settings(JOBS[name], name=name), find_parts())
    directory = Path(__file__).parent / name
    with megatron_on_cpu():
        torch.distributed.init_process_group("gloo")
        initialize_groups(job)
        seed_this_rank(job.recipe.seed)
        trainer = prepare(job, torch.device("cpu"))
        recorder = steptally.Recorder(directory, job=job, steps=4, warmup_steps=1, traced_steps=[3])
        with recorder:
            train(trainer, open_source("corpus", job), steps=4, recorder=recorder)
        trace = recorder.directory.trace(torch.distributed.get_rank())
        trace.write_bytes(gzip.compress(gzip.decompress(trace.read_bytes()), 9, mtime=0))
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
