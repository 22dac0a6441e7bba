"""What leaves a rank and its node."""

import pytest

from steptally.job import job_from_settings
from steptally.predict.wire import link_domain, network_bytes, sent_bytes


def job(**cluster):
    return job_from_settings(
        {
            "num_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "seq_length": 32,
            "vocab_size": 128,
            "world_size": 16,
            "devices_per_node": 4,
            **cluster,
        }
    )


@pytest.mark.parametrize(
    ("collective", "sent"),
    [
        # nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n and (n-1)/n of the size.
        ("all_reduce", 1500),
        ("all_gather", 750),
        ("reduce_scatter", 750),
        ("all_to_all", 750),
        ("send", 1000),
        ("recv", 0),
    ],
)
def test_a_ring_of_four_sends(collective, sent):
    assert sent_bytes(collective, 1000, 4) == sent


def test_an_all_to_all_crosses_the_network_in_proportion_to_the_ranks_beyond_it():
    assert network_bytes(job(), "all_to_all", 1600, 0, range(16)) == 1200
    assert network_bytes(job(), "all_to_all", 1600, 0, range(4)) == 0


def test_rings_over_several_nodes_are_the_librarys_business():
    assert network_bytes(job(), "all_gather", 1600, 0, range(16)) is None
    assert network_bytes(job(), "all_gather", 1600, 0, range(4)) == 0


def test_a_rack_wide_link_joins_nodes():
    rack = job(link_domain_size=16)
    assert {link_domain(rack, rank) for rank in range(16)} == {0}
    assert network_bytes(rack, "send", 100, 0, (0, 15)) == 0
    assert network_bytes(job(), "send", 100, 0, (0, 15)) == 100
