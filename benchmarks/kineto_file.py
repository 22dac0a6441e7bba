"""Writes a large Kineto trace of a training run that never was, in torch's own text layout.

Shaped like real ones: of 100 GPU events come 380 operators, 230 runtime calls and 360 flow arrows;
mangled kernel names of 50 to 250 characters; decimals with nanoseconds; NCCL kernels with their
arguments on a stream of their own, which overlap compute. The same seed writes the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

RANKS = 8
LAYERS = 24
PROCESS, THREAD, BACKWARD_THREAD = 2910249, 2910249, 2919752
BASE_NS = 1_711_964_646_000_000_000
FIRST_US = 4_458_676_522_690.655
COMPUTE_STREAM, NCCL_STREAM = 7, 20

HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017624576,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d, "pg_count": 1, \
"pg_config": [{"pg_name": "5", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", \
"backend_config": "cuda:nccl", "pg_size": %d, "ranks": %s}]},
  "traceEvents": [
"""
TAIL = """
  ],
  "traceName": "synthetic.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %d
}
"""
OPERATOR = """  {
    "ph": "X", "cat": "cpu_op", "name": "%s", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,"Record function id": %d, %s"Ev Idx": %d
    }
  }"""
ANNOTATION = """  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,"Record function id": 0, "Ev Idx": 0
    }
  }"""
RUNTIME = """  {
    "ph": "X", "cat": "cuda_runtime", "name": "%s", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,      "cbid": 211, "correlation": %d
    }
  }"""
FLOW = """  {
    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %.3f,
    "cat": "%s", "name": "%s"%s
  }"""
KERNEL = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": 0, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,      "queued": 0, "device": 0, "context": 1,      "stream": %d, \
"correlation": %d,%s
    }
  }"""
LAUNCH_SHAPE = """      "registers per thread": 128,      "shared memory": 49152,      \
"blocks per SM": 4.740741,      "warps per SM": 75.851852,      "grid": [%d, 1, 1],      \
"block": [256, 1, 1],      "est. achieved occupancy %%": 75"""
COPY = '      "bytes": %d, "memory bandwidth (GB/s)": 0.7861635220125787'
COLLECTIVE = """, "Collective name": "%s", "In msg nelems": %d, "Out msg nelems": %d, \
"Group size": %d, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", \
"Process Group Name": "5", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", \
"Process Group Ranks": "%s\""""
SHAPED = """"Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", "c10::BFloat16", ""], \
"Input Strides": [[4096, 1], [1, 4096], []], "Input Dims": [[8192, 4096], [4096, %d], []], """
NUMBERED = '"Sequence number": %d, "Fwd thread id": %d, '

NORM = (
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel"
    "<transformer_engine::normalization::Kernel_traits<__nv_bfloat16, float> >"
)
ATTENTION = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t> >(flash::Flash_fwd_params)"
)
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, "
    "c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, "
    "at::detail::Array<char*, 3> >(int, at::native::BinaryFunctor<c10::BFloat16>)"
)
XMMA = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas"
)
# Name of the operator, kernel, grid, mean microseconds.
WORK = (
    ("aten::native_layer_norm", NORM, 1056, 21.0),
    ("aten::mm", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", 132, 310.0),
    ("aten::_scaled_dot_product_flash_attention", ATTENTION, 512, 240.0),
    ("aten::mm", XMMA, 132, 120.0),
    ("aten::add", ELEMENTWISE, 8192, 17.0),
    ("aten::mul", ELEMENTWISE.replace("Mul", "Add"), 8192, 9.0),
    ("aten::silu", "triton_poi_fused_mul_silu_0", 4096, 14.0),
    ("aten::mm", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", 132, 480.0),
)


def write_kineto(path: Path, megabytes: float, rank: int = 0, seed: int = 0) -> int:
    """Write about so many 10⁶ bytes; the number of events written."""
    limit, written, events = megabytes * 1e6, 0, 0
    with path.open("w", encoding="utf-8") as file:
        ranks = list(range(RANKS))
        written += file.write(HEADER % (rank, RANKS, RANKS, ranks))
        for event in _run(random.Random(seed + rank)):
            written += file.write(",\n" + event if events else event)
            events += 1
            if written > limit:
                break
        file.write(TAIL % BASE_NS)
    return events


def _run(chance: random.Random) -> Iterator[str]:
    """The events of one step after another, without end."""
    writer = _Step(chance)
    while True:
        yield from writer.step()


class _Step:
    """Where the host and the two streams stand, and the numbers given out so far."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.host = FIRST_US
        self.free = {COMPUTE_STREAM: FIRST_US, NCCL_STREAM: FIRST_US}
        self.number = 0
        self.steps = 0

    def step(self) -> Iterator[str]:
        began, self.steps = self.host, self.steps + 1
        for thread in (THREAD, BACKWARD_THREAD):
            for _ in range(LAYERS):
                for operator, kernel, grid, duration in WORK:
                    yield from self._launch(thread, operator, kernel, grid, duration)
                yield from self._communicate(thread)
        length = self.host - began
        yield ANNOTATION % (self.steps, PROCESS, THREAD, began, length, self.number)
        yield self._device(
            "gpu_memcpy", "Memcpy DtoD (Device -> Device)", COMPUTE_STREAM, 5, COPY % 4000
        )

    def _operators(self, thread: int, name: str) -> Iterator[str]:
        backward = thread == BACKWARD_THREAD
        outer = (
            f"autograd::engine::evaluate_function: {name}Backward0" if backward else "aten::linear"
        )
        numbered = NUMBERED % (self.number, int(backward))
        inner = SHAPED % self.chance.choice((1024, 4096, 14336)) if name == "aten::mm" else ""
        for operator, own in (
            (outer, numbered),
            ("aten::t", ""),
            ("aten::empty", ""),
            (name, inner),
        ):
            self.number += 1
            start, length = self.host, self.chance.uniform(3, 40)
            self.host += self.chance.uniform(0.5, 3)
            numbers = (self.number, self.number - 140, own, self.number)
            yield OPERATOR % (operator, PROCESS, thread, start, length, *numbers)

    def _launch(
        self, thread: int, operator: str, kernel: str, grid: int, mean: float
    ) -> Iterator[str]:
        yield from self._operators(thread, operator)
        for call in ("cudaStreamIsCapturing", "cudaLaunchKernel"):
            self.number += 1
            yield RUNTIME % (call, PROCESS, thread, self.host, 4.5, self.number, self.number)
            self.host += self.chance.uniform(3, 9)
        yield FLOW % ("s", self.number, PROCESS, thread, self.host - 4, "ac2g", "ac2g", "")
        duration = mean * self.chance.uniform(0.9, 1.3)
        yield self._device("kernel", kernel, COMPUTE_STREAM, duration, LAUNCH_SHAPE % grid)
        yield FLOW % (
            "f",
            self.number,
            0,
            COMPUTE_STREAM,
            self.free[COMPUTE_STREAM],
            "ac2g",
            "ac2g",
            ', "bp": "e"',
        )
        if thread == BACKWARD_THREAD:
            yield FLOW % (
                "f",
                self.number,
                PROCESS,
                thread,
                self.host,
                "fwdbwd",
                "fwdbwd",
                ', "bp": "e"',
            )

    def _communicate(self, thread: int) -> Iterator[str]:
        kind, elements = self.chance.choice(
            (("_allgather_base", 4194304), ("_reduce_scatter_base", 33554432))
        )
        yield from self._operators(thread, f"c10d::{kind}_")
        self.number += 1
        yield RUNTIME % (
            "cudaLaunchKernelExC",
            PROCESS,
            thread,
            self.host,
            6.5,
            self.number,
            self.number,
        )
        arguments = LAUNCH_SHAPE % 24 + COLLECTIVE % (
            kind,
            elements,
            elements * RANKS,
            RANKS,
            list(range(RANKS)),
        )
        name = "AllGather" if "gather" in kind else "ReduceScatter_Sum_bf16"
        name = f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        yield self._device("kernel", name, NCCL_STREAM, self.chance.uniform(150, 900), arguments)

    def _device(
        self, category: str, name: str, stream: int, duration: float, arguments: str
    ) -> str:
        start = max(self.free[stream], self.host) + self.chance.uniform(0.7, 2)
        self.free[stream] = start + duration
        numbers = (self.number, stream, self.number, arguments)
        return KERNEL % (category, name, stream, start, duration, *numbers)
