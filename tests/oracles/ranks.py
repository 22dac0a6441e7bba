"""Rank groups of megatron-core's own RankGenerator. stdin: cases, stdout: answers."""

import json
import sys

from megatron.core.parallel_state import RankGenerator


def answer(case):
    sizes = {name: case[name] for name in ("tp", "cp", "dp", "pp")}
    expert = {"tp": case["etp"], "ep": case["ep"], "dp": case["edp"], "pp": case["pp"]}
    dense = RankGenerator(**sizes, ep=1, order=case["order"])
    experts = RankGenerator(**expert, cp=1, order=case["order"])
    return {
        "dense": {token: dense.get_ranks(token) for token in case["dense_tokens"]},
        "expert": {token: experts.get_ranks(token) for token in case["expert_tokens"]},
    }


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
