"""What must hold of every FLOP count, whatever the job."""

from hypothesis import given
from hypothesis import strategies as st

from steptally.job import job_from_settings
from steptally.predict import flops_per_step


@st.composite
def dense_jobs(draw):
    heads = draw(st.sampled_from([2, 4, 8]))
    return {
        "num_layers": draw(st.integers(1, 6)),
        "hidden_size": 16 * heads * draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_query_groups": draw(st.sampled_from([g for g in (1, 2, 4, 8) if heads % g == 0])),
        "ffn_hidden_size": 64 * draw(st.integers(1, 8)),
        "swiglu": draw(st.booleans()),
        "seq_length": draw(st.integers(1, 300)),
        "vocab_size": draw(st.integers(1, 5000)),
        "make_vocab_size_divisible_by": 256,
        "global_batch_size": draw(st.integers(1, 9)),
        "transformer_impl": draw(st.sampled_from(["local", "transformer_engine"])),
    }


def step(settings, **changed):
    return flops_per_step(job_from_settings({**settings, **changed}))


@given(dense_jobs())
def test_flops_are_additive_over_layers(settings):
    layers = settings["num_layers"]
    one, two = step(settings, num_layers=1), step(settings, num_layers=2)
    many = step(settings)
    for single, double, all_layers in zip(one, two, many, strict=True):
        assert all_layers == single + (layers - 1) * (double - single)


@given(dense_jobs())
def test_flops_do_not_depend_on_tensor_parallelism(settings):
    assert step(settings, make_vocab_size_divisible_by=256) == step(
        settings, tensor_model_parallel_size=2, make_vocab_size_divisible_by=128
    )


@given(dense_jobs())
def test_flops_per_token_grow_with_the_sequence(settings):
    seq = settings["seq_length"]
    shorter, longer = step(settings), step(settings, seq_length=seq + 1)
    assert longer.useful * seq > shorter.useful * (seq + 1)


@given(dense_jobs())
def test_what_is_useful_is_executed(settings):
    useful, executed = step(settings)
    assert 0 < useful <= executed
    assert isinstance(useful, int)
    assert isinstance(executed, int)


@given(dense_jobs(), st.sampled_from([{}, {"recompute_granularity": "selective"}]))
def test_recompute_changes_what_is_executed_and_never_what_is_useful(settings, selective):
    full = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    assert step(settings, **full).useful == step(settings, **selective).useful
    assert step(settings, **full).executed > step(settings, **selective).executed
