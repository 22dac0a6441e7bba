"""Side files: recognised by content, judged by severity, damage counted."""

import pytest
from tests.unit.stragglers.side_file_texts import (
    ALL,
    DCGM_CSV,
    DMON,
    EXPORTER,
    HEALTHY_QUERY,
    NEW_CSV,
    NIC_CSV,
    OLD_CSV,
    QUERY,
    RANKS,
    RDMA,
    TOKENS,
    TOKENS_BY_RANK,
    TOPOLOGY,
)

from steptally.errors import InputError
from steptally.measure.stragglers.side_files.numa import places_of_manifest
from steptally.measure.stragglers.side_files.read import read_side_files


@pytest.fixture
def read(tmp_path):
    """Reads texts as files whose names say nothing."""

    def reading(*texts, **options):
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"file{number}"
            path.write_text(text)
            paths.append(path)
        hosts = dict.fromkeys(paths, options["host"]) if "host" in options else None
        return read_side_files(paths, hosts, options.get("places", ()))

    return reading


def told(found, severity=None):
    return [
        (finding.severity, finding.sentence)
        for finding in found.findings
        if severity in (None, finding.severity)
    ]


def test_a_log_of_nvidia_smi_tells_a_hardware_slowdown_with_gpu_time_and_clock(read):
    found = read(NEW_CSV, host="n1")
    fault = found.findings[0]
    assert fault.severity == "fault"
    assert fault.sentence == (
        "HW thermal slowdown holds the clocks in 1 of 2 readings, SM clock 990 of 1980 MHz"
    )
    assert (fault.host, fault.gpu_index, fault.gpu_uuid, fault.bus_id) == (
        "n1",
        1,
        "GPU-bb",
        "0000:3b:00.0",
    )
    assert (fault.first, fault.last) == ("2026/11/29 10:00:00.100",) * 2
    # Bit 0x8 is set together with 0x40, and is not told twice.
    assert len(told(found, "fault")) == 1


def test_a_power_cap_at_the_limit_and_full_load_is_healthy_in_a_log(read):
    found = read(NEW_CSV)
    assert ("healthy", ("SW power cap is active in 2 of 2 readings at 693 of 700 W, utilization "
            "100 %: full load, not a fault")) in told(found)  # fmt: skip


def test_old_column_names_without_units_are_read_alike(read):
    found = read(OLD_CSV)
    assert found.gpu_samples["reasons"].to_list() == [0x4, 0x20]
    assert found.gpu_samples["power_w"].to_list() == [398.2, None]
    assert told(found, "notable") == [
        ("notable", "SW thermal slowdown holds the clocks in 1 of 1 readings, SM clock 1200 MHz")
    ]


def test_a_power_cap_far_below_the_limit_is_notable(read):
    # l4rz/reverse-engineering-dell-idrac…#3: capped at 240 of 400 W by the management controller.
    text = OLD_CSV.replace("398.2", "240.0")
    assert "below its own limit: something else caps it" in told(read(text), "notable")[0][1]


def test_rows_of_another_length_are_counted_and_a_second_header_is_none(read):
    text = OLD_CSV + "0, 1410\n" + OLD_CSV
    found = read(text)
    assert len(found.gpu_samples) == 4
    assert found.lost[0].startswith("1 rows of ")


def test_a_log_that_does_not_tell_the_gpu_is_refused(read):
    with pytest.raises(InputError, match=r"add `index,uuid,pci.bus_id` to --query-gpu"):
        read("timestamp, temperature.gpu\n2026, 50\n")


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({}, "healthy", "SW power cap is active in 1 of 1 readings at 396 of 400 W"),
        ({"cap": "Not Active"}, "healthy", "no slowdown and no error in 1 readings"),
        ({"slow": "Active"}, "fault", "HW slowdown holds the clocks"),
        ({"slow": "Active", "thermal": "Active"}, "fault", "HW thermal slowdown holds"),
        ({"slow": "Active", "brake": "Active"}, "fault", "HW power brake holds the clocks"),
        ({"slow": "Active", "use": 0}, "notable", "a change of clocks shows it too"),
        ({"use": 30}, "notable", "while utilization is 30 %"),
        ({"power": "240.00"}, "notable", "something else caps it"),
        ({"sram": 2}, "fault", "2 uncorrected ECC errors"),
        ({"remap": "Yes"}, "fault", "a row of memory could not be remapped"),
        ({"hot": 90}, "fault", "90 °C is at or over its slowdown temperature of 89 °C"),
        ({"counter": 5_000_000}, "notable", "HW thermal slowdown has held for 5.0 s"),
    ],
)
def test_a_query_is_healthy_or_a_fault_by_its_reasons(read, changes, severity, words):
    # mlfoundations/open_clip#703: SW Power Cap is right if power and utilization are high; a
    # hardware slowdown is a fault.
    found = read(QUERY.format(**{**HEALTHY_QUERY, **changes}))
    first = found.findings[0]
    assert first.severity == severity
    assert words in first.sentence
    assert (first.gpu_uuid, first.bus_id) == ("GPU-cc", "0000:3b:00.0")


def test_the_block_of_reasons_alone_as_pasted_into_an_issue_is_read(read):
    block = (
        "    Clocks Throttle Reasons\n"
        "        Idle                        : Not Active\n"
        "        SW Power Cap                : Active\n"
        "        HW Slowdown                 : Not Active\n"
        "            HW Thermal Slowdown     : Not Active\n"
    )
    found = read(block)
    assert found.gpu_samples["reasons"].to_list() == [0x4]
    assert told(found) == [
        (
            "notable",
            (
                "SW power cap is active in 1 of 1 readings; whether at full load is not told: "
                "record power.draw and power.limit"
            ),
        )
    ]


def test_several_gpus_of_one_query_are_apart(read):
    one = QUERY.format(**HEALTHY_QUERY)
    two = one[one.index("GPU 00000000") :].replace("3B", "5C").replace("GPU-cc", "GPU-ee")
    found = read(one + two)
    assert found.gpu_samples["bus_id"].to_list() == ["0000:3b:00.0", "0000:5c:00.0"]
    assert found.gpu_samples["power_w"].to_list() == [396.5, 396.5]
    assert found.gpu_samples["ecc_corrected"].to_list() == [3.0, 3.0]


def test_dcgmi_dmon_gives_bits_and_counters_per_gpu(read):
    found = read(DMON)
    assert found.gpu_samples["index"].to_list() == [0, 1, 0, 1]
    assert found.gpu_samples["reasons"].to_list() == [4, 72, 4, 72]
    assert ("fault", ("HW thermal slowdown holds the clocks in 2 of 2 readings, SM clock 1200 "
            "MHz")) in told(found)  # fmt: skip
    assert ("notable", "PCIe replays grow from 0 to 12 in 2 readings") in told(found)


def test_columns_of_dmon_that_are_not_read_are_refused_with_those_that_are(read):
    with pytest.raises(InputError, match="dcgmi dmon -e 100,112"):
        read("#Entity  FBUSD\nID\nGPU 0  10\n")


def test_dcgm_exporters_metrics_carry_host_gpu_and_xid(read):
    found = read(EXPORTER)
    assert [(f.host, f.gpu_index) for f in found.findings if f.severity == "fault"] == [
        ("n1", 0),
        ("n1", 1),
    ]
    assert ("fault", "HW power brake holds the clocks in 1 of 1 readings, SM clock 1980 MHz") in (
        told(found)
    )
    assert ("fault", "Xid 79, an error of the hardware (DCGM keeps the last one)") in told(found)
    assert ("notable", "PCIe replays grow from 5 to 9 in 2 readings") in told(found)
    assert ("notable", "5 NVLink CRC and replay errors since the counter was reset") in told(found)


def test_a_csv_of_dcgm_fields_is_read(read):
    found = read(DCGM_CSV)
    fault = found.findings[0]
    assert fault.sentence == "uncorrected ECC errors grow from 0 to 2 in 2 readings"
    assert (fault.host, fault.gpu_uuid, fault.first, fault.last) == (
        "n3",
        "GPU-dd",
        "1764410400",
        "1764410401",
    )


def test_dcgms_blanks_are_no_values(read):
    text = DMON.replace("1980", "2147483632").replace("690.000", "140737488355328.000")
    assert read(text).gpu_samples["sm_mhz"].to_list() == [None, 1200.0, 1975.0, None]


def test_a_gpu_whose_clock_is_below_its_peers_is_notable_and_not_called_healthy(read):
    rows = "\n".join(f"{gpu}, {1980 if gpu != 2 else 1500}, 99" for gpu in range(8))
    found = read(f"index, clocks.sm [MHz], utilization.gpu [%]\n{rows}\n")
    (row,) = [finding for finding in found.findings if finding.gpu_index == 2]
    assert row.severity == "notable"
    assert row.sentence == (
        "its SM clock under load is 1500 MHz (median), that of all 8 GPUs 1980 MHz: 0.76x"
    )


def test_a_link_that_went_down_during_the_readings_is_a_fault_and_growth_counts(read):
    found = read(NIC_CSV)
    assert [(f.severity, f.device, f.sentence) for f in found.findings] == [
        (
            "fault",
            "mlx5_1",
            (
                "link_downed grows by 2 in 2 readings; median of the other 1: 0: the link itself "
                "(cable, transceiver, switch port)"
            ),
        ),
        (
            "notable",
            "mlx5_0",
            "out_of_sequence grows by 90000 in 2 readings: packets lost and sent again",
        ),
    ]
    assert (found.findings[0].first, found.findings[0].last) == ("10:00", "11:00")


def test_rdma_statistics_are_since_boot_and_congestion_needs_ten_times_the_others(read):
    found = read(RDMA, host="n1")
    assert [(f.severity, f.host, f.device, f.sentence) for f in found.findings] == [
        (
            "notable",
            "n1",
            "mlx5_1/1",
            (
                "roce_adp_retrans is 20668 since boot or reset; median of the other 1: 0: packets "
                "lost and sent again"
            ),
        ),
        ("healthy", "n1", "mlx5_0/1", "no link or transport errors"),
    ]


def test_a_rank_on_another_node_than_its_gpu_is_told_across_two_files(read):
    found = read(RANKS, TOPOLOGY)
    by_rank = {finding.rank: finding for finding in found.findings}
    assert by_rank[0].severity == "healthy"
    assert by_rank[1].severity == "notable"
    assert by_rank[1].sentence.startswith("runs on CPUs 0-13, all on another node than GPU 1 (node")
    assert "it is not bound (28 of its 56 CPUs are away)" in by_rank[2].sentence


def test_cpus_in_quotes_are_one_list_of_several_ranges(read):
    found = read('rank,host,gpu,cpus\n0,n1,0,"0-13,28-41"\n', TOPOLOGY)
    assert told(found) == [("healthy", "runs on CPUs near GPU 0 (node 0)")]


def test_a_rank_whose_gpus_place_is_unknown_is_counted(read):
    found = read(RANKS)
    assert found.findings == ()
    assert found.lost[0].startswith("3 ranks of ")


def test_nodes_may_be_stated_without_a_topology(read):
    found = read("rank,cpu_node,gpu_node\n0,0,0\n1,0,1\n")
    assert told(found) == [
        ("notable", "runs on node 0, its GPU is on node 1"),
        ("healthy", "runs on node 0, that of its GPU"),
    ]


def test_a_manifests_topology_serves_its_host(read):
    places = places_of_manifest({"machine": {"host": "n1", "gpu_topology": TOPOLOGY}})
    assert [(p.host, p.index, p.node) for p in places] == [("n1", 0, 0), ("n1", 1, 1)]
    found = read(RANKS, places=places)
    assert sorted(finding.rank for finding in found.findings) == [0, 1]
    assert places_of_manifest({"machine": {"gpu_topology": None}}) == []


def test_a_hot_expert_is_told_with_its_layer(read):
    found = read(TOKENS)
    assert told(found) == [
        (
            "notable",
            (
                "expert 3 takes 2.50x the mean tokens in layer 3 (5000, median of 2 steps; the "
                "most of all in 100 % of them)"
            ),
        )
    ]
    assert len(found.expert_tokens) == 8


def test_tokens_by_rank_are_judged_by_rank(read):
    found = read(TOKENS_BY_RANK)
    # 1200 and 1100 of a mean of 1000: both at 1.10x or more, hottest first.
    assert [(finding.severity, finding.rank) for finding in found.findings] == [
        ("notable", 3),
        ("notable", 1),
    ]


def test_even_tokens_are_healthy(read):
    found = read("step,layer,rank,tokens\n1,0,0,100\n1,0,1,101\n1,0,2,\n")
    assert told(found)[0][0] == "healthy"
    assert found.lost[0].startswith("1 rows of ")


def test_what_is_no_side_file_is_refused_with_the_kinds_that_are(read, tmp_path):
    for text in ("", "hello\nworld\n", "a,b\n1,2\n", "\0\0\0", '{"a": 1}\n', "{"):
        with pytest.raises(InputError, match="is no side file that is known: give `nvidia-smi"):
            read(text)
    with pytest.raises(InputError, match="cannot be read"):
        read_side_files([tmp_path / "missing"])
    with pytest.raises(InputError, match="cannot be read"):
        read_side_files([tmp_path])


def test_a_log_without_a_readable_row_is_refused(read):
    with pytest.raises(InputError, match=r"no row of it can be read \(1 damaged\)"):
        read(OLD_CSV.splitlines()[0] + "\n0, 1\n")


def test_all_kinds_are_read_in_one_call_with_faults_first(read):
    found = read(*ALL.values())
    severities = [finding.severity for finding in found.findings]
    assert severities == sorted(severities, key=("fault", "notable", "healthy").index)
    assert {finding.subject for finding in found.findings} == {"gpu", "nic", "numa", "experts"}
