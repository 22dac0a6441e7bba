"""Two ranks that call every form of collective inside traced steps; run by test_tagging.py."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import steptally


class ReducedGradient(torch.autograd.Function):
    """Sums the gradient over a group in backward, as tensor parallelism does."""

    @staticmethod
    def forward(context, value, group):
        context.group = group
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


def one_step(rank, pair):
    data, half, double = torch.ones(64), torch.empty(32), torch.empty(128)
    dist.all_reduce(data, group=pair)
    dist.all_reduce(data, group=pair, async_op=True).wait()
    dist.reduce_scatter_tensor(half, data, group=pair)
    dist.all_gather_into_tensor(double, data.bfloat16().float(), group=pair)
    dist.all_to_all_single(torch.empty(64), data, group=pair)
    dist.all_gather([torch.empty(64), torch.empty(64)], data, group=pair)
    dist.broadcast(torch.ones(4, dtype=torch.int64), src=0, group=pair)
    with dist._coalescing_manager(group=pair, async_ops=True) as coalesced:
        dist.all_reduce(data[:10], group=pair)
        dist.all_reduce(data[10:40], group=pair)
    coalesced.wait()
    peer = 1 - rank
    exchange = [
        dist.P2POp(dist.isend, torch.ones(5, dtype=torch.bfloat16), peer),
        dist.P2POp(dist.irecv, torch.empty(5, dtype=torch.bfloat16), peer),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    value = torch.ones(2, 3, requires_grad=True)
    ReducedGradient.apply(value, pair).sum().backward()
    functional.all_reduce(data, "sum", pair).wait()
    dist.barrier(group=pair)


def main(directory):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    with steptally.Recorder(directory, steps=6, warmup_steps=0, traced_steps=(2, 3, 5)) as recorder:
        for _ in range(6):
            with recorder.step():
                one_step(rank, pair)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
