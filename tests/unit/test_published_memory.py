"""Published memory: rows turned into jobs, held against each source's counter and optimizer."""

from pathlib import Path

import pytest

from steptally.predict.published.agreement import agreement
from steptally.predict.published.memory_check import compare_memory, memory_job
from steptally.predict.published.memory_fit import (
    compared_memory,
    fitted_outside,
    leave_one_model_out,
    rank_pairs,
)
from steptally.predict.published.memory_sources import (
    OWN,
    find_memory_source,
    memory_sources,
)
from steptally.predict.published.rows import read_published

PUBLISHED = Path(__file__).parents[3] / "shared" / "published" / "published.yaml"
# Facts of one row each: SimuMax's B200 table, and the BLOOM chronicles.
SIMUMAX = """
- id: simumax
  source: {repo: MooreThreads/SimuMax, file: docs/b200/b200_release_v1.2.md}
  model: llama3-70b
  arch: {layers: 12, hidden: 8192, ffn: 28672, heads: 64, kv_heads: 8, head_dim: 128,
         vocab: 128256, swiglu: true, tied: false}
  seq: 4096
  gbs: 16
  mbs: 1
  gpus: 8
  gpu: B200
  tp: 1
  pp: 2
  cp: 1
  ep: 1
  dp: 4
  sp: false
  recompute: none
  measured: {mem_alloc_max_gib: 66.55}
"""
BLOOM = """
- id: bloom
  source: {{repo: bigscience-workshop/bigscience, file: train/tr11-176B-ml/chronicles-prequel.md}}
  model: gpt
  arch: {{layers: {layers}, hidden: 14336, ffn: 57344, heads: 64, kv_heads: 64, vocab: 250880,
         swiglu: false, tied: true}}
  seq: 2048
  gbs: 2048
  mbs: 2
  gpus: 384
  gpu: A100-80GB-SXM
  tp: 4
  pp: 12
  zero: 1
  recompute: full
  measured: {measured}
  notes: date {date}
"""


def rows(tmp_path, text):
    path = tmp_path / "rows.yaml"
    path.write_text(text)
    return read_published(path)


def bloom(tmp_path, layers=72, measured="{mem_gb: 44.0}", date="02-25"):
    return rows(tmp_path, BLOOM.format(layers=layers, measured=measured, date=date))


def test_a_run_is_predicted_as_torch_counts_it(tmp_path):
    (found,) = compare_memory(rows(tmp_path, SIMUMAX))
    assert found.unit == "GiB"
    assert found.error == pytest.approx(0, abs=0.003)


def test_the_optimizer_of_a_source_can_depend_on_its_own_date(tmp_path):
    (early,), (late,) = (
        compare_memory(bloom(tmp_path)),
        compare_memory(bloom(tmp_path, date="02-28", measured="{mem_gb: 59.0}")),
    )
    assert (early.source.optimizer, late.source.optimizer) == ("zero-1", "bf16-optimizer")
    assert late.predicted > early.predicted + 10
    assert abs(early.error) < 0.1
    assert abs(late.error) < 0.1


def test_layers_that_do_not_divide_are_split_with_the_embeddings(tmp_path):
    (row,) = bloom(tmp_path, layers=70)
    job = memory_job(row, find_memory_source(row))
    assert job.architecture.num_layers == 70
    assert job.layout.account_for_embedding_in_pipeline_split
    (row,) = bloom(tmp_path, layers=72)
    assert not memory_job(
        row, find_memory_source(row)
    ).layout.account_for_embedding_in_pipeline_split


def test_a_run_that_ran_out_of_memory_has_a_verdict_for_a_reason(tmp_path):
    text = BLOOM.format(layers=72, measured="{oom: true}", date="02-25").replace("pp: 12", "pp: 3")
    (found,) = compare_memory(rows(tmp_path, text))
    assert found.error is None
    assert "ran out of memory, as predicted" in found.reason


def test_fsdp_rows_and_rows_without_memory_have_reasons(tmp_path):
    text = SIMUMAX.replace("MooreThreads/SimuMax", "pytorch/torchtitan")
    assert "FSDP2" in compare_memory(rows(tmp_path, text))[0].reason
    text = SIMUMAX.replace("mem_alloc_max_gib", "tflops_per_gpu")
    assert "publishes no memory" in compare_memory(rows(tmp_path, text))[0].reason


def test_an_own_row_states_its_settings_itself(tmp_path):
    text = SIMUMAX.replace("MooreThreads/SimuMax", "me/mine")
    (row,) = rows(
        tmp_path, text + "  settings: {normalization: RMSNorm, use_distributed_optimizer: true}\n"
    )
    assert find_memory_source(row) is OWN
    assert memory_job(row, OWN).recipe.use_distributed_optimizer
    (refused,) = compare_memory(
        rows(tmp_path, text + "  settings: {normalisation: RMSNorm, use_megatron_fsdp: true}\n")
    )
    assert "use_megatron_fsdp" in refused.reason


def test_a_damaged_row_is_a_reason_and_no_traceback(tmp_path):
    text = SIMUMAX.replace("layers: 12", "layers: twelve")
    assert compare_memory(rows(tmp_path, text))[0].reason


def test_every_source_says_who_says_so():
    assert all(source.why and source.matches for source in memory_sources())


@pytest.mark.skipif(not PUBLISHED.exists(), reason="../shared is not here")
def test_published_memory_is_predicted_within_the_figures_of_the_docs():
    comparisons = compare_memory(read_published(PUBLISHED))
    assert all(one.error is not None or one.reason for one in comparisons)
    compared = compared_memory(comparisons)
    ranks = agreement(rank_pairs(compared))
    assert ranks.compared == 224
    assert ranks.mape < 0.001  # docs/formulas/memory.md says 0.05 %
    assert abs(ranks.bias) < 0.001
    chronicles = [one for one in compared if "bigscience" in one.source.name]
    assert agreement([one.pair for one in chronicles]).mape < 0.05
    assert agreement(leave_one_model_out(chronicles)).mape < 0.055
    # The one fitted constant is the median over these rows.
    assert fitted_outside(chronicles) == pytest.approx(chronicles[0].source.outside, abs=0.05)
