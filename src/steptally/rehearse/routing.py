"""How many tokens go to each expert: stated, since fake tensors choose no expert."""

from __future__ import annotations

from dataclasses import dataclass

from steptally.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Relative loads of the experts, the same in every layer; None: balanced."""

    weights: tuple[float, ...] | None = None

    def tokens_per_expert(
        self, copies: int, experts: int, tokens: int, expert_parallel: int = 1
    ) -> tuple[int, ...]:
        """How `copies` = tokens · topk are dealt to the experts, by largest remainder.

        Equal remainders go to the first expert of each expert-parallel rank, then to the second.

        Raises `InputError` for weights of another number of experts, or that would give an expert
        more than every token.

        >>> Routing().tokens_per_expert(6, 4, 3), Routing().tokens_per_expert(6, 4, 3, 2)
        ((2, 2, 1, 1), (2, 1, 2, 1))
        >>> Routing(weights=(3, 1)).tokens_per_expert(4, 2, 4)
        (3, 1)
        """
        weights = self.weights or (1.0,) * experts
        if len(weights) != experts:
            raise InputError(
                f"tokens per expert are given for {len(weights)} experts, and the job has "
                f"{experts}: give one number for each."
            )
        shares = [copies * weight / sum(weights) for weight in weights]
        dealt = [int(share) for share in shares]
        local = experts // expert_parallel
        by_remainder = sorted(range(experts), key=lambda e: (dealt[e] - shares[e], e % local, e))
        for expert in by_remainder[: copies - sum(dealt)]:
            dealt[expert] += 1
        if max(dealt) > tokens:
            raise InputError(
                f"tokens per expert give expert {dealt.index(max(dealt))} {max(dealt)} of {copies} "
                f"token copies, but a token goes to an expert once and there are {tokens}: use a "
                f"flatter histogram."
            )
        return tuple(dealt)
