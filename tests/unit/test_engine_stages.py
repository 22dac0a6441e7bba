"""The layout text is read as Megatron-Core reads it."""

import pytest

from steptally.engine.stages import stages_of, virtual_stages
from steptally.job import job_from_settings

TEXTS = ["Et*3|(tt|)*2tL", "Et|t|t|tL", "E|(t|)*4L", "Et*2|t*2,L", "E(t*2|)*2tL"]


@pytest.mark.parametrize("text", TEXTS)
def test_it_has_the_stages_that_megatron_core_finds(text):
    layouts = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    found = layouts.PipelineParallelLayerLayout.get_num_stages_from_str(text)
    assert len(stages_of(text)) == found


def test_repetitions_of_groups_are_written_out():
    assert stages_of("Et*3|(tt|)*2tL") == ["Ettt", "tt", "tt", "tL"]


@pytest.mark.parametrize(("text", "chunks"), [("Et|tttL", None), ("Et|t|t|tL", 2)])
def test_more_stages_than_ranks_are_interleaved(text, chunks):
    job = job_from_settings(
        {
            "num_layers": 4,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "seq_length": 32,
            "vocab_size": 256,
            "pipeline_model_parallel_size": 2,
            "pipeline_model_parallel_layout": text,
        }
    )
    assert virtual_stages(job.layout) == chunks
