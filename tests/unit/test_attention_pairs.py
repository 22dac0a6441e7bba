"""Query-key pairs: closed forms against counting them one by one."""

from hypothesis import given
from hypothesis import strategies as st

from steptally.predict.attention_pairs import (
    causal_pairs,
    chunk_pairs,
    full_pairs,
    visible_pairs,
    window_pairs,
)
from steptally.predict.layers import LayerKind

SIZES = st.integers(1, 60)


def counted(seq, window=None, chunk=None):
    """Pairs (query, key) that a mask leaves, counted."""
    return sum(
        1
        for query in range(seq)
        for key in range(query + 1)
        if (window is None or query - key < window)
        and (chunk is None or query // chunk == key // chunk)
    )


@given(SIZES, SIZES, SIZES)
def test_closed_forms_equal_the_masks(seq, window, chunk):
    assert full_pairs(seq) == seq * seq
    assert causal_pairs(seq) == counted(seq)
    assert window_pairs(seq, window) == counted(seq, window)
    assert chunk_pairs(seq, chunk) == counted(seq, None, chunk)
    assert chunk_pairs(seq, chunk, window) == counted(seq, window, chunk)


@given(st.lists(SIZES, min_size=1, max_size=5), SIZES)
def test_documents_of_a_packed_sequence_attend_within_themselves(lengths, window):
    kind = LayerKind(mixer="attention", mlp="dense", window=window)
    assert visible_pairs(kind, lengths) == sum(counted(length, window) for length in lengths)
