#! /bin/bash
# A command of 2021, one line continued.
python -m torch.distributed.launch --nproc_per_node=8 --nnodes=4 --node_rank=0 \
       --master_addr=10.0.0.1 --master_port=6000 \
       pretrain_gpt.py \
       --tensor-model-parallel-size=4 \
       --pipeline-model-parallel-size=2 \
       --num-layers=24 \
       --hidden-size=2304 \
       --num-attention-heads=24 \
       --micro-batch-size=4 \
       --global-batch-size=256 \
       --seq-length=1024 \
       --max-position-embeddings=1024 \
       --rampup-batch-size 32 32 146484 \
       --vocab-file gpt2-vocab.json \
       --merge-file gpt2-merges.txt \
       --tokenizer-type GPT2BPETokenizer \
       --checkpoint-activations \
       --DDP-impl local \
       --num-query-groups 4 \
       --frobnicate 3 fast \
       --hiden-dropout 0.2 \
       --fp16
