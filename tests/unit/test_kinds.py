"""An event is what its category says; its name decides only within a category."""

import pytest

from steptally.errors import InputError
from steptally.trace.kind_rules import FAMILIES
from steptally.trace.kinds import load_rules, step_number

RULES = load_rules()


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        # NCCL before and after 2.19, RCCL and others, as their traces spell them.
        ("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "communication"),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("kernel", "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("Kernel", "volta_sgemm_128x64_nn", "compute"),
        # HTA counts this as neither (HolisticTraceAnalysis PR #162): the word Sync is no sign.
        ("kernel", "SyncBatchNormForwardKernel", "compute"),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", "copy"),
        ("gpu_memcpy", "CopyHostToDevice", "copy"),
        # A copy engine's transfer to a peer is communication (pytorch PR 179937).
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", "communication"),
        # A blit kernel of ROCm is a kernel by category, whatever it does.
        ("kernel", "__amd_rocclr_copyBuffer", "compute"),
        ("overhead", "Activity Buffer Request", "instrument"),
        ("gpu_memset", "Memset (Device)", "memset"),
        ("gpu_user_annotation", "nccl:all_reduce", "device_annotation"),
        ("cuda_sync", "Context Sync", "device_sync"),
        ("cuda_runtime", "cudaLaunchKernel", "launch"),
        ("cpu_op", "aten::mm", "operator"),
        ("Operator", "aten::mm", "operator"),
        ("cpu_op", "ncclKernel_look_alike", "operator"),
        ("cpu_op", "c10d::allreduce_", "issue"),
        ("cpu_op", "record_param_comms", "issue"),
        ("cpu_op", "_c10d_functional::wait_tensor", "wait"),
        ("cpu_op", "steptally::wait", "wait"),
        ("user_annotation", "steptally::wait", "wait"),
        ("cpu_op", "steptally::collective", "collective"),
        ("user_annotation", "gloo:all_reduce", "transfer"),
        ("user_annotation", "ProfilerStep#7", "step"),
        ("cpu_op", "ProfilerStep#7", "step"),
        ("gpu_user_annotation", "ProfilerStep#7", "device_annotation"),
        ("cpu_op", "PythonDispatchMode", "instrument"),
        ("ac2g", "ac2g", None),
        ("python_function", "train.py(1): main", None),
        (None, "process_name", None),
    ],
)  # fmt: skip
def test_the_kind_of_an_event(category, name, kind):
    assert RULES.kind(category, name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "mscclKernel_Sum_half_Simple_LL128(ncclDevComm*, mscclWork)",
        "void mscclpp::collective::allreduce7<__half>(__half*, __half*)",
        "hcom_allReduce__428_0_1",
        "barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(nvshmem_team_t)",
        "rdxn_float_sum_on_stream_kernel(float*, float const*, int)",
        "void c10d::nvshmem_extension::exchangeSplitAndOffset<false>(long*, long*, int)",
        "void rocshmem_reduce_on_stream_kernel<float>(float*)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)",
        "void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)",
        "void primus_turbo::deep_ep::intranode::combine<__nv_bfloat16, 8>(void*)",
        "hybrid_ep::device_sync_kernel<8>(unsigned int*)",
        "EpDispatchIntraNodeKernel_bf16",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int, int)",
        "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16, 8>(void*)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()",
        "void c10d::intra_node_comm::oneShotAllReduceKernel<8, true>(__nv_bfloat16*)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
    ],
)
def test_communication_that_is_not_nccl_is_communication_too(name):
    assert RULES.kind("kernel", name) == "communication"
    assert RULES.family(name) == "communication"


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_add_all_reduce_4",  # named after what its input came from
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    ],
)
def test_computing_kernels_with_such_words_in_their_names_stay_compute(name):
    assert RULES.kind("kernel", name) == "compute"
    assert not RULES.looks_like_communication(name)


def test_a_kernel_that_is_named_like_communication_but_known_to_no_rule_is_suspect():
    assert RULES.kind("kernel", "my_lab::fast_all_to_all_v3") == "compute"
    assert RULES.looks_like_communication("my_lab::fast_all_to_all_v3")
    assert not RULES.looks_like_communication("ncclDevKernel_AllGather_RING_LL")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "gemm"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN", "gemm"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<cutlass::half_t> >()", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>()", "norm"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>()", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()",
         "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>()", "elementwise"),
        ("void at::native::elementwise_kernel<at::native::direct_copy_kernel_cuda()>()", "copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >()", "reduction"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*)", "reduction"),
        ("triton_red_fused_sum_3", "reduction"),
        ("xyz", "other"),
    ],
)  # fmt: skip
def test_the_family_of_a_kernel(name, family):
    assert RULES.family(name) == family
    assert family in FAMILIES


def test_copies_are_of_the_family_copy_by_their_kind():
    assert RULES.family("Memset (Device)", kind="memset") == "copy"
    assert RULES.family("Memcpy PtoP (Device -> Device)", kind="communication") == "communication"


def write_rules(tmp_path, text):
    path = tmp_path / "kinds.toml"
    path.write_text(text)
    return path


def test_a_users_rules_go_before_the_shipped_ones(tmp_path):
    rules = load_rules(
        write_rules(
            tmp_path,
            """
            [categories]
            quantum_kernel = "compute"
            [[kind]]
            kind = "communication"
            name = "my_lab::"
            [[kind]]
            kind = "compute"
            name = "nccl_look_alike"
            [[family]]
            family = "attention"
            name = "my_mixer"
            """,
        )
    )
    assert rules.kind("Quantum_Kernel", "x") == "compute"
    assert rules.kind("kernel", "my_lab::fast_all_to_all_v3") == "communication"
    assert rules.kind("kernel", "nccl_look_alike") == "compute"
    assert rules.kind("kernel", "ncclDevKernel_AllGather_RING_LL") == "communication"
    assert rules.family("my_mixer_gemm") == "attention"
    assert not rules.looks_like_communication("my_lab::fast_all_to_all_v3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[kind]\n", "is no rule file"),
        ("[[kind]]\nkind = 'communication'\n", "name"),
        ("[[kind]]\nkind = 'comunication'\nname = 'x'\n", "did you mean 'communication'"),
        ("[[kind]]\nkind = 'compute'\nname = '('\n", "is no regular expression"),
        ("[[kind]]\nkind = 'compute'\nname = 'x'\nof = ['operator']\n", "of = 'operator'"),
        ("[[family]]\nfamily = 'mlp'\nname = 'x'\n", "none of gemm, attention"),
        ("[categories]\nkernel = 7\n", "is no rule file"),
        ("[kinds]\nx = 1\n", "unknown field"),
    ],
)
def test_a_damaged_rule_file_is_refused_with_its_fault(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        load_rules(write_rules(tmp_path, text))


def test_a_rule_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"mine\.toml cannot be read as a rule file"):
        load_rules(tmp_path / "mine.toml")


def test_a_category_nobody_knows_is_told_apart_from_one_left_out_on_purpose():
    assert RULES.knows("python_function")
    assert not RULES.knows("quantum_kernel")


@pytest.mark.parametrize(
    ("name", "number"),
    [("ProfilerStep#12", 12), ("ProfilerStep# 3", 3), ("ProfilerStep", None), ("Step#4", None)],
)
def test_the_number_of_a_step_is_in_its_name(name, number):
    assert step_number(name) == number
