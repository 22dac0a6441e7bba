"""Which layers each stage holds, against megatron-core's own functions."""

import pytest
from tests.megatron_oracle import ask_megatron

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.stages import chunks_of_stage, model_chunks, virtual_stages

NAMES = {
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "first": "decoder_first_pipeline_num_layers",
    "last": "decoder_last_pipeline_num_layers",
    "embedding": "account_for_embedding_in_pipeline_split",
    "loss": "account_for_loss_in_pipeline_split",
    "layout": "pipeline_model_parallel_layout",
    "mtp": "mtp_num_layers",
}
CASES = [
    {"num_layers": 5, "pp": 1},
    {"num_layers": 8, "pp": 4},
    {"num_layers": 8, "pp": 2, "vpp": 4},
    {"num_layers": 24, "pp": 4, "vpp": 3, "mtp": 1},
    {"num_layers": 126, "pp": 16, "first": 7, "last": 7},  # Llama-3.1-405B
    {"num_layers": 10, "pp": 2, "first": 7},
    {"num_layers": 10, "pp": 4, "last": 1},
    {"num_layers": 22, "pp": 4, "first": 4, "last": 2, "vpp": 2},
    {"num_layers": 7, "pp": 4, "embedding": True},
    {"num_layers": 7, "pp": 4, "loss": True},
    {"num_layers": 14, "pp": 4, "embedding": True, "loss": True, "vpp": 2},
    {"num_layers": 6, "pp": 4, "embedding": True, "loss": True, "vpp": 2},
    # Megatron's own examples in its docstrings.
    {"num_layers": 61, "pp": 16, "layout": "Et*3|(tt|)*29,m|L", "mtp": 1},
    {"num_layers": 8, "pp": 4, "layout": "E|(tt|)*2,(t|)*4,mL", "mtp": 1},
    {"num_layers": 4, "pp": 2, "layout": "Et|tttL"},
    {"num_layers": 5, "pp": 3, "layout": "Ett|tttmm|L", "mtp": 2},
    {"num_layers": 3, "pp": 2, "layout": "Ett||t|L"},
]


def job(case):
    settings = {NAMES[name]: value for name, value in case.items() if name in NAMES}
    return job_from_settings(
        {
            "num_layers": case["num_layers"],
            "hidden_size": 8,
            "num_attention_heads": 1,
            "seq_length": 8,
            "vocab_size": 8,
            **settings,
        }
    )


def test_every_chunk_holds_the_layers_that_megatron_builds_there():
    answers = ask_megatron("stages", CASES)
    for case, expected in zip(CASES, answers, strict=True):
        found = [
            [chunk.pp, chunk.vpp, chunk.layers.start, chunk.layers.stop, chunk.mtp_layers]
            for chunk in model_chunks(job(case))
        ]
        assert found == expected, case


@pytest.mark.parametrize("case", CASES)
def test_the_embedding_comes_first_the_head_last_and_each_layer_once(case):
    chunks = model_chunks(job(case))
    assert [chunk.embedding for chunk in chunks].index(True) == 0
    assert [chunk.head for chunk in chunks].index(True) == len(chunks) - 1
    assert [n for chunk in chunks for n in chunk.layers] == list(range(case["num_layers"]))
    assert sum(chunk.mtp_layers for chunk in chunks) == (case.get("mtp") or 0)
    assert sum(chunk.final_norm for chunk in chunks) == 1


def test_a_layout_string_implies_its_number_of_virtual_stages():
    # 1 + 29 + 1 + 1 = 32 stages over 16 ranks
    assert (
        virtual_stages(job({"num_layers": 61, "pp": 16, "layout": "Et*3|(tt|)*29,m|L", "mtp": 1}))
        == 2
    )


def test_with_mtp_the_final_norm_stands_after_the_last_decoder_layer():
    # TransformerBlock.has_final_layernorm_in_this_stage
    chunks = model_chunks(
        job({"num_layers": 61, "pp": 16, "layout": "Et*3|(tt|)*29,m|L", "mtp": 1})
    )
    assert [chunk.layers.stop for chunk in chunks if chunk.final_norm] == [61]
    assert not chunks[-1].final_norm


def test_one_rank_holds_one_chunk_of_each_virtual_stage():
    chunks = chunks_of_stage(job({"num_layers": 8, "pp": 2, "vpp": 2}), 1)
    # Megatron's own example: stage 1 holds [2, 3] and [6, 7]
    assert [list(chunk.layers) for chunk in chunks] == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"num_layers": 2, "pp": 2, "layout": "Et|txL"}, "holds 'x'"),
        ({"num_layers": 2, "pp": 2, "layout": "Et|t|L"}, "has 3 stages"),
        ({"num_layers": 2, "pp": 2, "vpp": 2, "layout": "Et|tL"}, "drop the latter"),
        ({"num_layers": 2, "pp": 1, "layout": "Et|tL"}, "which has one stage"),
        ({"num_layers": 2, "pp": 2, "layout": "tE|tL"}, "start with its only E"),
        ({"num_layers": 3, "pp": 2, "layout": "Et|tL"}, "num_layers is 3"),
        ({"num_layers": 2, "pp": 2, "layout": "Et|tmL"}, "mtp_num_layers is 0"),
        ({"num_layers": 2, "pp": 2, "layout": "Et|mtL", "mtp": 1}, "before the first m"),
        ({"num_layers": 2, "pp": 2, "layout": "Etm|tmL", "mtp": 2}, "before the first m"),
        ({"num_layers": 2, "pp": 2, "layout": "Ett|m|m|L", "mtp": 2}, "in one stage"),
        ({"num_layers": 2, "pp": 2, "layout": "Ett|m||L", "mtp": 1}, "last virtual stage"),
        ({"num_layers": 2, "pp": 2, "layout": "Et|tL", "loss": True}, "more than one way"),
        ({"num_layers": 8, "pp": 2, "first": 3, "vpp": 5}, "stage 0 holds 3 layers"),
    ],
)
def test_a_split_that_megatron_refuses_names_what_was_found_and_the_rule(case, words):
    with pytest.raises(InputError, match=words):
        model_chunks(job(case))
