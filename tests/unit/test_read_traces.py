"""One front door: which recordings are in the paths given, and of which rank each is."""

import gzip
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from nsys_files import GLOBAL_PID, KERNEL, PID, write_export
from recordings import SHARED_TRACES, needs_shared_traces, recorded_run
from steptally.errors import InputError
from steptally.trace.kinds import load_rules
from steptally.trace.optable import write_table
from steptally.trace.rank_names import rank_in_name
from steptally.trace.read import read_traces

EVENT = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 100,
    "dur": 10,
    "args": {"device": 0, "stream": 7, "correlation": 5},
}


def write_kineto(path, rank=None, behind=False):
    about = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank}}
    events = {"traceEvents": [EVENT]}
    text = json.dumps({**events, **about} if behind else {**about, **events}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def ranks(sources):
    return [source.rank for source in sources]


def test_a_run_directory_gives_its_traces_and_none_of_its_other_json():
    sources = read_traces([recorded_run("tp2_dp2").path])
    assert ranks(sources) == [0, 1, 2, 3]
    assert {source.format for source in sources} == {"kineto"}


def test_patterns_directories_and_files_may_be_mixed_and_name_a_file_twice(tmp_path):
    for rank in range(3):
        write_kineto(tmp_path / "a" / f"rank{rank}.json.gz")
    write_kineto(tmp_path / "b" / "rank7.json")
    given = [tmp_path / "a" / "rank*.json.gz", tmp_path / "a", str(tmp_path / "b" / "rank7.json")]
    assert ranks(read_traces(given)) == [0, 1, 2, 7]


def test_sources_are_read_only_when_asked_and_travel_to_other_processes(tmp_path):
    (source,) = read_traces([write_kineto(tmp_path / "rank3.json", rank=3)])
    again, rules = pickle.loads(pickle.dumps((source, load_rules())))
    trace = again.read(rules)
    assert (again.label, trace.rank, trace.events.height) == ("rank 3", 3, 1)


@pytest.mark.parametrize("behind", [False, True])
def test_the_rank_in_a_file_outranks_the_one_in_its_name(tmp_path, behind):
    path = write_kineto(tmp_path / "rank1.json", rank=5, behind=behind)
    assert ranks(read_traces([path])) == [5]


def test_a_given_rank_outranks_all_and_is_of_one_file(tmp_path):
    path = write_kineto(tmp_path / "rank1.json", rank=5)
    (source,) = read_traces([path], rank=9)
    assert source.read().rank == 9
    other = write_kineto(tmp_path / "rank2.json")
    with pytest.raises(InputError, match="tells the rank of one"):
        read_traces([path, other], rank=9)


def test_a_rank_that_nothing_tells_stays_unknown(tmp_path):
    (source,) = read_traces([write_kineto(tmp_path / "trace.json")])
    assert source.rank is None
    assert source.label.endswith("trace.json")
    assert source.read().rank is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank_12.json.gz", 12),
        ("rank-3.1711964646.pt.trace.json.gz", 3),
        ("worker7.json", 7),
        ("trace-0.json", 0),
        ("trace_15.json.gz", 15),
        ("4.json", 4),
        ("r2.sqlite", 2),
        ("report.rank5.parquet", 5),
        ("rank6/trace.json", 6),
        ("global_rank9_tp_rank1.json", 9),
        # Numbers of something else.
        ("tp_rank1_dp_rank0.json", None),
        ("step_100.json", None),
        ("iteration-7.json.gz", None),
        ("node1_4242.1711964646000.pt.trace.json", None),
        ("frank3.json", None),
        ("llama_70b.json", None),
        ("trace.json", None),
    ],
)
def test_the_rank_in_a_name(name, rank):
    assert rank_in_name(Path(name)) == rank


def test_two_files_of_one_rank_are_refused_with_both_names(tmp_path):
    write_kineto(tmp_path / "a" / "rank0.json")
    write_kineto(tmp_path / "b" / "rank0.json")
    with pytest.raises(InputError, match=r"a/rank0\.json and .*b/rank0\.json all say .* rank 0"):
        read_traces([tmp_path])


def test_nothing_found_is_said_with_what_could_be(tmp_path):
    (tmp_path / "notes.json").write_text('{"loss": [1, 2]}')
    for given in (tmp_path, tmp_path / "*.gz"):
        with pytest.raises(InputError, match="no trace there"):
            read_traces([given])
    with pytest.raises(InputError, match="no path: no trace there"):
        read_traces([])


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"rank0\.json cannot be read"):
        read_traces([tmp_path / "rank0.json"])


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "rank0.json"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="no regular file"):
        read_traces([pipe])
    with pytest.raises(InputError, match="no trace there"):
        read_traces([tmp_path])


def test_a_report_that_was_not_exported_is_refused_with_the_command(tmp_path):
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"\0")
    for given in (report, tmp_path):
        with pytest.raises(InputError, match=r"nsys export --type sqlite rank0\.nsys-rep"):
            read_traces([given])
    write_export(tmp_path / "rank0.sqlite", kernel=[KERNEL])
    assert ranks(read_traces([tmp_path])) == [0]


def test_formats_are_told_by_content_whatever_the_name(tmp_path):
    export = write_export(tmp_path / "report.sqlite", kernel=[KERNEL])
    kineto = write_kineto(tmp_path / "rank0.json")
    write_table(read_traces([kineto])[0].read(), tmp_path / "rank1.parquet")
    for name, path in (("x1", export), ("x2", kineto), ("x3", tmp_path / "rank1.parquet")):
        shutil.copy(path, tmp_path / name)
        (source,) = read_traces([tmp_path / name])
        assert source.read().events.filter(kind="compute").height == 1


def test_an_export_of_several_devices_is_a_source_for_each_and_of_no_rank(tmp_path):
    second = {**KERNEL, "deviceId": 1, "globalPid": GLOBAL_PID + (1 << 24)}
    path = write_export(tmp_path / "rank0.sqlite", kernel=[KERNEL, second])
    sources = read_traces([path])
    assert ranks(sources) == [None, None]
    assert sources[1].label == f"{path}, process {PID + 1}, device 1"
    assert [source.read().device for source in sources] == [0, 1]


@needs_shared_traces
def test_real_recordings_of_eight_ranks_are_found_by_their_contents():
    sources = read_traces([SHARED_TRACES / "dlrm_v100_8ranks"])
    assert ranks(sources) == list(range(8))
    (quirk,) = read_traces([SHARED_TRACES / "no_rank.json.gz"])
    assert quirk.rank is None
