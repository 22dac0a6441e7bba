"""Published rows: read, turned into jobs, and held against each source's convention."""

import pytest

from steptally.errors import InputError
from steptally.predict.published.agreement import agreement
from steptally.predict.published.flops_check import compare_flops
from steptally.predict.published.row_settings import architecture_settings
from steptally.predict.published.rows import read_published
from steptally.predict.published.sources import find_source, sources

# One row of Megatron-Bridge's docs/performance-summary-archive.md (26.06) and one of the BLOOM
# chronicles: facts, copied from the tables.
LLAMA = """
- id: llama
  source: {repo: NVIDIA-NeMo/Megatron-Bridge, table: 26.06 NeMo Container / Pre-Training}
  model: llama3.1-405b
  arch: {layers: 126, hidden: 16384, ffn: 53248, heads: 128, kv_heads: 8, head_dim: 128,
         vocab: 128256, swiglu: true, tied: false}
  seq: 8192
  gbs: 1536
  gpus: 256
  tp: 4
  dtype: fp8
  measured: {tokens_per_s_per_gpu: 1048.0, tflops_per_gpu: 2646.0}
"""
BLOOM = """
- id: bloom-{date}
  source: {{repo: bigscience-workshop/bigscience, file: train/tr11-176B-ml/chronicles-prequel.md}}
  model: gpt
  arch: {{layers: {layers}, hidden: {hidden}, ffn: {ffn}, heads: 64, kv_heads: 64, vocab: 250880,
         swiglu: false, tied: true}}
  seq: 2048
  gbs: 2048
  gpus: 384
  tp: 8
  pp: {pp}
  measured: {{step_time_s: {seconds}, tflops_per_gpu: {tflops}}}
  notes: date {date}
"""


def rows(tmp_path, text):
    path = tmp_path / "rows.yaml"
    path.write_text(text)
    return read_published(path)


def test_a_row_is_compared_under_its_sources_convention(tmp_path):
    (found,) = compare_flops(rows(tmp_path, LLAMA))
    assert (found.convention, found.unit) == ("bridge", "TFLOP/s/device")
    assert found.error == pytest.approx(0, abs=0.001)


def test_the_convention_of_a_source_can_depend_on_its_own_date(tmp_path):
    old = BLOOM.format(
        date="02-20", layers=72, hidden=14400, ffn=57600, pp=12, seconds=172.40, tflops=90.84
    )
    new = BLOOM.format(
        date="02-23", layers=72, hidden=14336, ffn=57344, pp=12, seconds=123.79, tflops=130.24
    )
    before, after = compare_flops(rows(tmp_path, old + new))
    assert (before.convention, after.convention) == ("8n-without-embedding", "sc21")
    assert before.error == pytest.approx(0, abs=0.001)
    assert after.error == pytest.approx(0, abs=0.001)


def test_layers_that_had_to_fit_the_pipeline_are_a_multiple_of_its_stages(tmp_path):
    text = BLOOM.format(
        date="02-20", layers=77, hidden=14400, ffn=57600, pp=6, seconds=183.64, tflops=92.38
    )
    (row,) = rows(tmp_path, text)
    assert architecture_settings(row, find_source(row))["num_layers"] == 78


def test_an_mfu_is_compared_over_the_sources_peak(tmp_path):
    text = LLAMA.replace("tflops_per_gpu: 2646.0", "mfu: 0.5").replace(
        "{repo: NVIDIA-NeMo/Megatron-Bridge, table: 26.06 NeMo Container / Pre-Training}",
        "{paper: arXiv:2204.02311}",
    )
    (found,) = compare_flops(rows(tmp_path, text))
    assert (found.convention, found.unit) == ("palm", "MFU")
    assert found.predicted == pytest.approx(1048 * 2.59e12 / 275e12, rel=0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("tflops_per_gpu: 2646.0", "mem_gb: 3"), "publishes neither TFLOP/s nor MFU"),
        (("tokens_per_s_per_gpu: 1048.0, ", ""), "publishes no rate"),
        (("NVIDIA-NeMo/Megatron-Bridge", "someone/else"), "add `convention: NAME`"),
        (("layers: 126, ", ""), "not in the catalogue"),
        (("hidden: 16384", "hidden: wide"), "hidden_size"),
        (("heads: 128, kv_heads", "heads: 7, kv_heads"), "num_attention_heads"),
        (("seq: 8192", "other: 1"), "no seq"),
    ],
)
def test_a_row_that_cannot_be_compared_says_why(tmp_path, change, reason):
    text = LLAMA.replace(*change).replace("llama3.1-405b", "a-model")
    (found,) = compare_flops(rows(tmp_path, text))
    assert found.error is None
    assert reason in found.reason


def test_a_row_of_ones_own_names_its_convention(tmp_path):
    text = LLAMA.replace("NVIDIA-NeMo/Megatron-Bridge", "someone/else") + "  convention: palm\n"
    (found,) = compare_flops(rows(tmp_path, text))
    assert found.convention == "palm"
    assert "printed as" in found.note


def test_a_model_of_the_catalogue_needs_no_architecture(tmp_path):
    text = LLAMA.replace("layers: 126, ", "")
    (found,) = compare_flops(rows(tmp_path, text))
    assert found.error == pytest.approx(0, abs=0.001)


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: 1", "holds dict"), ("[]", "holds list"), ("- {model: x}", "entry 1"), ("a: [", "read")],
)
def test_a_file_that_holds_no_rows_is_refused(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        rows(tmp_path, text)


def test_every_source_has_a_known_convention_and_says_why():
    from steptally.predict.conventions import find_convention

    for source in sources():
        find_convention(source.convention)
        assert len(source.why) > 20


def test_agreement_counts_means_and_order():
    found = agreement([(1.0, 1.0), (2.02, 2.0), (2.9, 3.0)])
    assert (found.compared, found.within_0_3pct, found.within_1pct) == (3, 1, 2)
    assert found.mape == pytest.approx((0.01 + 0.1 / 3) / 3)
    assert found.bias == pytest.approx((0.01 - 0.1 / 3) / 3)
    assert found.order == 1.0


def test_agreement_of_nothing_is_not_known():
    found = agreement([])
    assert (found.compared, found.mape, found.order) == (0, None, None)
