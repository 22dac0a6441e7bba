#!/bin/bash
# One script for several sizes, chosen by positional arguments.
set -e
ENV=$1
MODEL_SIZE=$2
SEQ_LEN=${3:-4096}
PR=${4:-bf16}
TP=${TP:-2}
SP=${SP:-true}
SAVE_PATH=${SAVE_PATH:-/tmp/out}

if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=8
fi

if [ $MODEL_SIZE = 0.5B ]; then
    NUM_LAYERS=24
    HIDDEN_SIZE=896
    NUM_ATTN_HEADS=14
    INTERMEDIATE_SIZE=4864
    NUM_KEY_VALUE_HEADS=2
    EXTRA_VOCAB_SIZE=293
elif [ $MODEL_SIZE = 7B ]; then
    NUM_LAYERS=28
    HIDDEN_SIZE=3584
    NUM_ATTN_HEADS=28
    INTERMEDIATE_SIZE=18944
    NUM_KEY_VALUE_HEADS=4
    EXTRA_VOCAB_SIZE=421
fi

if [ $PR = fp16 ]; then
    pr_options=" \
        --fp16"
elif [ $PR = bf16 ]; then
    pr_options=" \
        --bf16"
fi

if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel "
elif [ $SP = false ]; then
    sp_options=" "
fi

gqa_options=" \
    --group-query-attention \
    --num-query-groups ${NUM_KEY_VALUE_HEADS}"

megatron_options="  \
        --save ${SAVE_PATH} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --ffn-hidden-size ${INTERMEDIATE_SIZE} \
        --seq-length ${SEQ_LEN} \
        --max-position-embeddings 131072 \
        --micro-batch-size 1 \
        --global-batch-size $((8 * 4)) \
        --swiglu \
        --normalization RMSNorm \
        --add-qkv-bias \
        --disable-bias-linear \
        --position-embedding-type rope \
        --rotary-base 1000000 \
        --vocab-size 152064 \
        --extra-vocab-size ${EXTRA_VOCAB_SIZE} \
        --tensor-model-parallel-size ${TP} \
        --untie-embeddings-and-output-weights
        "

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank ${RANK:-0}"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_qwen.py
 ${megatron_options} ${pr_options} ${gqa_options} ${sp_options}"

echo ${run_cmd}
eval ${run_cmd}
set +x
