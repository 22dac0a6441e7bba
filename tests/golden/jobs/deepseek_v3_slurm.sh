#!/bin/bash
#SBATCH --job-name=deepseek_v3
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

set -euxo pipefail

: ${MBS:=1}
export GBS=${GBS:-2048}
PP=8; EP=64
FIRST_DENSE=3
NUM_LAYERS=61
RUN_NAME="DeepSeek-V3-TP1PP${PP}EP${EP}"
EXTRA=${EXTRA_ARGS:-}

MODEL_ARGS=(
    --transformer-impl transformer_engine
    --num-layers $NUM_LAYERS
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --kv-channels 128
    --multi-latent-attention
    --q-lora-rank 1536 --kv-lora-rank 512
    --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
    --qk-layernorm
    --normalization RMSNorm --norm-epsilon 1e-6
    --position-embedding-type rope --rotary-base 10000
    --swiglu --untie-embeddings-and-output-weights --disable-bias-linear
    --num-experts 256
    --moe-layer-freq "'([0]*${FIRST_DENSE}+[1]*$((NUM_LAYERS - FIRST_DENSE)))'"
    --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8
    --moe-router-num-groups 8
    --moe-router-load-balancing-type seq_aux_loss
    --moe-token-dispatcher-type flex --moe-enable-deepep
    --moe-grouped-gemm
    --mtp-num-layers 1
    --make-vocab-size-divisible-by 3232
    --seq-length 4096 --max-position-embeddings 4096
    --attention-dropout 0.0 --hidden-dropout 0.0
)
# ' this quote is in a comment
TRAINING_ARGS=(
    --micro-batch-size ${MBS} --global-batch-size ${GBS}
    --train-samples 585937500
    --bf16 --fp8-format e4m3 --fp8-recipe blockwise
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --recompute-granularity selective --recompute-modules mla_up_proj mlp moe_act
    --use-precision-aware-optimizer --main-grads-dtype fp32 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size ${PP}
    --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1
    --pipeline-model-parallel-layout "'Et*3|(tt|)*29,m|L'"
)
if [ "${PROFILE:-0}" = 1 ]; then
    TRAINING_ARGS+=(--profile --profile-ranks 0 8)
fi
[ -n "${WANDB_API_KEY:-}" ] && TRAINING_ARGS+=(--wandb-project x)

cat > hostfile <<EOF
node01 slots=8
--num-layers 1
EOF

srun --mpi=pmix -l --container-image=nvcr.io/nvidia/nemo:25.09 \
    bash -c "
    cd /workspace && python -u pretrain_gpt.py ${MODEL_ARGS[*]} \
        ${TRAINING_ARGS[*]} ${PARALLEL_ARGS[*]} ${EXTRA} \
        --tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3 \
        --wandb-exp-name ${RUN_NAME} 2>&1 | tee log_\${SLURM_NODEID}.txt
    "
