"""A launch script is read as bash and Megatron would read it, without running anything."""

from pathlib import Path

import pytest
from tests.parameter_count import count_parameters

from steptally.errors import InputError
from steptally.job import read_job
from steptally.job.readers.shell import read_script
from steptally.job.readers.shell_values import arithmetic

JOBS = Path(__file__).parents[1] / "golden" / "jobs"
SMALL = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 128"


@pytest.fixture
def read(tmp_path):
    """Read a text as a job, from a file."""

    def reader(text, *overrides, name="train.sh"):
        path = tmp_path / name
        path.write_text(text)
        return read_job(str(path), overrides)

    return reader


def test_arrays_variables_and_arithmetic_of_megatrons_own_example():
    job = read_job(str(JOBS / "train_gpt3_175b_distributed.sh"))
    layout = job.layout
    assert (layout.world_size, layout.data_parallel_size, layout.num_microbatches) == (64, 1, 64)
    assert layout.virtual_pipeline_model_parallel_size == 3  # 96 layers / 8 stages / 4 layers
    assert layout.recompute_granularity == "selective"
    assert layout.rampup_batch_size is None  # commented out
    assert job.recipe.adam_beta2 == 0.95
    assert job.cluster.devices_per_node == 8
    assert job.padded_vocab_size == 51200  # GPT-2's 50257 padded for TP8
    assert not job.notes
    assert not job.unknown
    assert {"save", "data_path", "tensorboard_dir"} <= set(job.ignored)


def test_m098_18_a_list_without_gqa_named_llama_3_8b_is_told_so():
    """M098-18: the flags build 8.835 B parameters instead of 8.03 B."""
    job = read_job(str(JOBS / "llama-3-8b.args"))
    assert count_parameters(job) == 8_835_567_616
    assert job.named_like == "llama-3-8b"
    (note,) = job.notes
    assert "named like llama-3-8b" in note
    assert "num_query_groups 32 instead of 8" in note
    assert job.assumed["vocab_size"].startswith("128256")


def test_set_makes_it_the_model_it_is_named_after():
    job = read_job(str(JOBS / "llama-3-8b.args"), ["num_query_groups=8"])
    assert count_parameters(job) == 8_030_261_248
    assert not job.notes


def test_branches_are_chosen_by_variables_that_the_user_supplies():
    job = read_job(str(JOBS / "run_qwen_family.sh"), ["MODEL_SIZE=7B", "ENV=dsw"])
    assert job.architecture.num_layers == 28
    assert job.layout.sequence_parallel  # SP defaults to true, TP to 2
    assert job.recipe.bf16
    assert job.layout.world_size == 8
    assert job.unknown == {"extra_vocab_size": "421"}
    assert count_parameters(job) == 7_615_616_512


def test_without_them_the_sentence_names_the_flag_the_variable_and_the_condition():
    with pytest.raises(InputError) as raised:
        read_job(str(JOBS / "run_qwen_family.sh"))
    for words in ("--num-layers is ${NUM_LAYERS}", "condition around line 2", "--set NUM_LAYERS="):
        assert words in str(raised.value)


def test_slurm_a_quoted_command_defaults_and_a_layer_pattern():
    job = read_job(str(JOBS / "deepseek_v3_slurm.sh"))
    shape, layout = job.architecture, job.layout
    assert shape.moe_layer_freq == (0, 0, 0, *[1] * 58)
    assert layout.pipeline_model_parallel_layout == "Et*3|(tt|)*29,m|L"
    assert layout.recompute_modules == ("mla_up_proj", "mlp", "moe_act")
    assert (layout.world_size, layout.global_batch_size) == (512, 2048)  # 64 nodes of 8 tasks
    assert (job.recipe.fp8, job.recipe.fp8_recipe) == ("e4m3", "blockwise")
    assert job.recipe.exp_avg_dtype == "bf16"
    assert count_parameters(job) == 671_026_404_352
    assert job.unknown == {"moe_router_num_groups": "8", "moe_enable_deepep": True}
    assert job.named_like == "deepseek-v3"
    assert not job.notes


def test_flags_with_equals_signs_and_switches_of_2021():
    job = read_job(str(JOBS / "old_style.sh"))
    assert (job.layout.world_size, job.layout.tensor_model_parallel_size) == (32, 4)
    assert job.layout.rampup_batch_size == (32, 32, 146484)
    assert job.layout.recompute_method == "uniform"
    assert job.architecture.num_query_groups == 24
    assert job.unknown == {"frobnicate": ["3", "fast"], "hiden_dropout": "0.2"}
    assert any("did you mean '--hidden-dropout'" in note for note in job.notes)
    assert any("num_query_groups 4 has no effect" in note for note in job.notes)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("--disable-bias-linear", "add_bias_linear", False),
        ("--no-bias-gelu-fusion", "bias_gelu_fusion", False),
        ("--no-overlap-p2p-communication", "overlap_p2p_communication", False),
        ("--untie-embeddings-and-output-weights", "untie_embeddings_and_output_weights", True),
        ("--norm-epsilon 1e-6", "norm_epsilon", 1e-6),
        ("--fp8-format hybrid", "fp8", "hybrid"),
        ("--no-rope-fusion", "apply_rope_fusion", False),
        ("--no_rope_fusion", "apply_rope_fusion", False),
        ("--lr 1e-4 --lr 2e-4", "lr", 2e-4),
    ],
)
def test_a_switch_sets_the_name_behind_it_in_its_own_polarity(read, text, name, value):
    assert read(f"{SMALL} {text}").settings()[name] == value


@pytest.mark.parametrize(
    ("launcher", "world"),
    [
        ("torchrun --nproc_per_node 4 --nnodes 2 train.py", 8),
        ("torchrun --nproc-per-node=4 train.py", 4),
        ("python -m torch.distributed.run --nproc_per_node=4 --nnodes=3 train.py", 12),
        ("mpirun -np 16 python train.py", 16),
        ("srun -N 2 --ntasks-per-node=4 python train.py", 8),
        ("deepspeed --num_gpus 4 --num_nodes 2 train.py", 8),
        ("WORLD_SIZE=6\npython train.py", 6),
    ],
)
def test_the_launcher_tells_the_world_size(read, launcher, world):
    assert read(f"{launcher} {SMALL}").layout.world_size == world


def test_a_number_of_nodes_from_outside_is_asked_for(read):
    job = read(f"torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES train.py {SMALL}")
    assert "smallest" in job.assumed["world_size"]
    assert any("--set world_size=N" in note for note in job.notes)
    job = read(f"torchrun --nproc_per_node 8 --nnodes $NODES train.py {SMALL}", "NODES=2")
    assert job.layout.world_size == 16


def test_a_variable_that_may_hold_flags_is_read_as_empty_and_reported(read):
    job = read(f"python train.py {SMALL} $EXTRA")
    assert any("${EXTRA} is not defined" in note for note in job.notes)
    job = read(f"python train.py {SMALL} $EXTRA", "EXTRA=--bf16 --swiglu")
    assert job.recipe.bf16
    assert job.architecture.swiglu


def test_flags_after_a_comment_inside_a_command_do_not_reach_megatron(read):
    job = read(
        f"python train.py {SMALL} \\\n  # --fp16 \\\n  --bf16 \\\n  --swiglu --micro-batch-size 2"
    )
    assert not job.recipe.bf16
    assert any("flags stand alone" in note for note in job.notes)


def test_a_condition_decides_or_is_reported(read):
    decided = f'TP=2\nif [ "$TP" -gt 1 ]; then X=--sequence-parallel; fi\npython t.py {SMALL}'
    job = read(f"{decided} --tensor-model-parallel-size $TP $X")
    assert job.layout.sequence_parallel
    undecided = f"N=1\nif [ $A = b ]; then N=2; fi\npython t.py {SMALL} --micro-batch-size $N"
    job = read(undecided)
    assert job.layout.micro_batch_size == 1
    assert any("sets N under a condition" in note for note in job.notes)
    assert read(undecided, "A=b").layout.micro_batch_size == 2


def test_case_and_defaults(read):
    text = "S=${SIZE:-small}\ncase $S in\n big) N=8 ;;\n small|tiny) N=2 ;;\nesac\n"
    job = read(f"{text}python t.py {SMALL} --micro-batch-size $N")
    assert job.layout.micro_batch_size == 2
    assert (
        read(f"{text}python t.py {SMALL} --micro-batch-size $N", "SIZE=big").layout.micro_batch_size
        == 8
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"ARGS=(\n {SMALL}\n", "line 1: a list opened with ( is never closed"),
        (f'X="{SMALL}\n', "line 1: \" is opened and never closed"),
        (f"python t.py {SMALL} --micro-batch-size", "line 1: --micro-batch-size has no value"),
        (f"python t.py {SMALL} --micro-batch-size $MBS", "does not define MBS"),
        ("python t.py --num-layers 4 --hidden-si", "does not state hidden_size"),
        (f"python t.py {SMALL} --micro-batch-size two", "micro_batch_size is 'two'"),
        (f"python t.py {SMALL} --micro-batch-size 0", "micro_batch_size is 0"),
        (f"python t.py {SMALL} --expert-model-parallel-size -2", "parallel_size is -2"),
        (f"python t.py {SMALL} --optimizer lamb", "optimizer is 'lamb': it must be one of"),
    ],
)  # fmt: skip
def test_a_truncated_or_wrong_script_is_one_sentence(read, text, words):
    with pytest.raises(InputError) as raised:
        read(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("8 * (2 + 1)", 24),
        ("($N > 1) ? 4 : 2", 4),
        ("N == 3 && N < 4", 1),
        ("-7 / 2", -3),  # bash rounds towards zero
        ("-7 % 2", -1),
        ("2 ** 3", 8),
        ("${N} % 2 ? N : 0", 3),
    ],
)
def test_arithmetic_is_bashs(expression, value):
    variables = read_script("N=3", "s").variables
    assert arithmetic(expression, variables) == value


@pytest.mark.parametrize("expression", ["1 / 0", "X + 1", "1 +", "2 ** 999999", "1 ? 2", "a[0]"])
def test_arithmetic_that_cannot_be_is_unknown(expression):
    assert arithmetic(expression, read_script("", "s").variables) is None


def test_unquoted_array_elements_split_into_words(read):
    text = 'A=()\nif [[ "fp8" == "fp8" ]]; then\n A+=(\n "--fp8-format hybrid"\n "--bf16"\n )\nfi\n'
    job = read(f"{text}python t.py {SMALL} ${{A[@]}}")
    assert (job.recipe.fp8, job.recipe.bf16) == ("hybrid", True)


def test_an_argument_list_may_stand_for_the_file():
    assert read_job(SMALL).architecture.num_layers == 4


def test_eval_reads_quotes_inside_the_text(read):
    options = "--num-experts 2 --moe-layer-freq '([0]*1+[1]*3)'"
    job = read(f'run="python t.py {SMALL} {options}"\necho $run\neval $run')
    assert job.architecture.moe_layer_freq == (0, 1, 1, 1)


def test_a_script_that_refers_to_itself_without_end_is_refused(read):
    with pytest.raises(InputError, match="without end"):
        read("X='eval $X --num-layers 1 --hidden-size 8'\neval $X")


@pytest.mark.parametrize("nest", ["${A:-" * 3000, "$(echo " * 3000, "((" * 3000, "'\"" * 3000])
def test_deep_nesting_is_refused_not_followed(read, nest):
    with pytest.raises(InputError):
        read(f"X={nest}\npython t.py --num-layers 2 --hidden-size 8")
