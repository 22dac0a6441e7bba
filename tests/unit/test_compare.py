"""Two tallies line by line: which rows are one line, by how much they differ, what is refused."""

from dataclasses import replace
from fractions import Fraction

import pytest
from tests.synthetic_tally import DEMO_JOB, recorded_tally

from steptally.errors import InputError
from steptally.tally import (
    ConventionRow,
    Figure,
    FlopsRow,
    GemmRow,
    GroupRow,
    LoggedRow,
    LossRow,
    MemoryChangeRow,
    MemoryMomentRow,
    MemoryPeakRow,
    MemoryRow,
    ParametersRow,
    StepRow,
    Tally,
    TrafficRow,
    compare_tallies,
)


def tally(basis="predicted", job=DEMO_JOB, convention="exact-causal", summary=None, **accounts):
    return Tally(
        basis=basis, job=job, convention=convention, summary=summary or {}, accounts=accounts
    )


def with_layout(**settings):
    """The demo job with other settings of its layout."""
    return {**DEMO_JOB, "layout": {**DEMO_JOB["layout"], **settings}}


def only_section(a, b, account):
    (section,) = compare_tallies(a, b).accounts[account]
    return section


def found(section):
    """(quantity, key without what is the same everywhere, A, B) of each line."""
    return [(line.quantity, *line.key.values(), line.a, line.b) for line in section.lines]


def gemm(name="linear_qkv", phase="forward", m=512, n=256, k=256, *, calls=4, rank=0, **others):
    return GemmRow(
        name=name,
        phase=phase,
        m=m,
        n=n,
        k=k,
        batch=1,
        calls=calls,
        flops=2 * m * n * k * calls,
        rank=rank,
        **others,
    )


def collective(phase="forward", calls=4, size=1024, rank=0, **others):
    told = {"group": "TENSOR_MODEL_PARALLEL_GROUP", "group_size": 2, "collective": "all_gather"}
    return TrafficRow(
        **{**told, **others}, phase=phase, calls_per_step=calls, bytes_per_call=size, rank=rank
    )


class TestFlops:
    def test_terms_are_matched_by_name_and_phase_wherever_they_stand(self):
        rows = [
            FlopsRow(name="mlp", phase="forward", useful=10, executed=12),
            FlopsRow(name="head", phase="forward", useful=3, executed=3),
        ]
        section = only_section(tally(flops=rows), tally(flops=rows[::-1]), "flops")
        assert all(line.equal for line in section.lines)
        assert len(section.lines) == 4

    def test_integers_beyond_every_float_are_subtracted_exactly(self):
        # 4.1e19 is a 405B step of 16.8 M tokens: over 2**63, where floats are 8,192 apart.
        step = 41 * 10**18
        a = tally(flops=[FlopsRow(name="mlp", phase="forward", useful=step, executed=step)])
        b = tally(flops=[FlopsRow(name="mlp", phase="forward", useful=step, executed=step + 1)])
        first = only_section(a, b, "flops").lines[0]
        assert (first.quantity, first.difference) == ("executed", 1)
        assert first.relative == float(Fraction(1, step))
        assert first.exceeds(Fraction(0))
        assert not first.exceeds(Fraction(1, step))

    def test_the_largest_part_of_the_total_comes_first_and_equal_lines_last(self):
        def rows(small, large, same):
            sizes = {"small": small, "large": large, "same": same}
            return [FlopsRow(name=n, phase="step", useful=0, executed=x) for n, x in sizes.items()]

        # `small` doubles, but 100 of 1,200 are more of the total than 1 of 1,200.
        section = only_section(
            tally(flops=rows(1, 1000, 99)), tally(flops=rows(2, 1100, 99)), "flops"
        )
        order = [line.key["name"] for line in section.lines if line.quantity == "executed"]
        assert order == ["large", "small", "same"]
        assert section.lines[0].share == pytest.approx(100 / 1201)

    def test_useful_flops_of_two_conventions_are_refused_and_executed_ones_compared(self):
        rows = [FlopsRow(name="mlp", phase="forward", useful=10, executed=12)]
        a, b = tally(flops=rows), tally(flops=rows, convention="palm")
        by_name = {line.quantity: line for line in only_section(a, b, "flops").lines}
        assert by_name["executed"].equal
        assert by_name["useful"].refused == "convention 'exact-causal' against 'palm'"
        assert by_name["useful"].difference is None

    def test_a_phase_that_one_side_alone_has_is_a_line_of_that_side(self):
        forward = FlopsRow(name="mlp", phase="forward", useful=10, executed=10)
        again = FlopsRow(name="mlp", phase="recompute", useful=0, executed=10)
        section = only_section(tally(flops=[forward, again]), tally(flops=[forward]), "flops")
        alone = [line for line in section.lines if line.only_in]
        assert {(line.only_in, line.key["phase"]) for line in alone} == {("A", "recompute")}
        assert [line.exceeds(Fraction(99)) for line in alone] == [True, False]  # useful is 0

    def test_a_step_as_a_whole_is_held_against_the_sum_of_its_phases(self):
        forward = FlopsRow(name="mlp", phase="forward", useful=10, executed=10)
        a = tally(flops=[forward, replace(forward, phase="backward", executed=20)])
        b = tally(flops=[replace(forward, phase="step", useful=20, executed=30)])
        section = only_section(a, b, "flops")
        assert found(section) == [
            ("executed", "mlp", "step", 30, 30),
            ("useful", "mlp", "step", 20, 20),
        ]


class TestGemms:
    def test_a_recording_that_names_operators_is_matched_by_shape_and_pass(self):
        predicted = tally(
            gemms=[
                gemm(phase="forward"),
                gemm(phase="dgrad", n=128),
                gemm("linear_fc1", "wgrad", n=128, calls=2),
            ]
        )
        measured = tally(
            basis="measured",
            gemms=[gemm("mm", "forward"), gemm("mm", "backward", n=128, calls=6)],
        )
        section = only_section(predicted, measured, "gemms")
        assert section.keys == ("rank", "phase", "m", "n", "k", "batch")
        assert all(line.equal for line in section.lines)
        assert section.notes == (
            "A and B use different words for name: lines are matched without it",
            "dgrad, wgrad of A are counted as 'backward': B does not tell them apart",
        )

    def test_recompute_is_part_of_backward_for_a_recording_that_knows_only_passes(self):
        predicted = tally(gemms=[gemm(phase="dgrad"), gemm(phase="recompute")])
        measured = tally(basis="measured", gemms=[gemm("mm", "backward", calls=8)])
        section = only_section(predicted, measured, "gemms")
        assert {line.key["phase"] for line in section.lines} == {"backward"}
        assert all(line.equal for line in section.lines)

    def test_recompute_stays_apart_where_the_recording_knows_it(self):
        predicted = tally(gemms=[gemm(phase="dgrad"), gemm(phase="recompute")])
        measured = tally(
            basis="measured",
            gemms=[gemm("mm", "backward", calls=5), gemm("mm", "recompute", m=1)],
        )
        section = only_section(predicted, measured, "gemms")
        calls = [
            (line.key["phase"], line.a, line.b)
            for line in section.lines
            if line.quantity == "calls"
        ]
        assert sorted(calls, key=str) == [
            ("backward", 4, 5),
            ("recompute", 4, None),
            ("recompute", None, 4),
        ]

    def test_two_layouts_are_matched_by_product_since_their_shapes_differ(self):
        a = tally(gemms=[gemm(n=256)])
        b = tally(gemms=[gemm(n=128)], job=with_layout(tensor_model_parallel_size=4))
        section = only_section(a, b, "gemms")
        assert section.keys == ("rank", "phase", "name")
        first = section.lines[0]
        assert (first.quantity, first.relative) == ("flops", -0.5)
        assert first.words["n"] == ("256", "128")
        assert "the jobs differ in tensor_model_parallel_size" in section.notes[0]

    def test_another_batch_keeps_the_shapes(self):
        b = tally(gemms=[gemm(calls=8)], job=with_layout(global_batch_size=32))
        assert "m" in only_section(tally(gemms=[gemm(calls=4)]), b, "gemms").keys

    def test_ranks_that_one_side_alone_has_are_left_out_and_named(self):
        a, b = tally(gemms=[gemm()]), tally(gemms=[gemm(rank=rank) for rank in range(4)])
        section = only_section(a, b, "gemms")
        assert all(line.equal for line in section.lines)
        assert section.notes[0] == (
            "A has rank 0, B ranks 0, 1, 2, 3: rank 0 compared, the others left out"
        )

    def test_no_rank_in_common_is_refused(self):
        a, b = tally(gemms=[gemm()]), tally(gemms=[gemm(rank=3)])
        assert only_section(a, b, "gemms").refused == "no rank is in both: A has rank 0, B rank 3"

    def test_a_sum_over_ranks_is_held_against_rows_of_all_ranks(self):
        summed = tally(gemms=[gemm(rank=None, calls=16)])
        each = tally(gemms=[gemm(rank=rank) for rank in range(4)])  # the demo job has 4 ranks
        section = only_section(summed, each, "gemms")
        assert "rank" not in section.keys
        assert all(line.equal for line in section.lines)

    def test_a_sum_over_ranks_is_not_held_against_some_of_them(self):
        summed, some = tally(gemms=[gemm(rank=None, calls=16)]), tally(gemms=[gemm()])
        refused = only_section(summed, some, "gemms").refused
        assert refused == "one side names no ranks, and B holds rank 0 of 4"

    def test_bytes_are_those_of_all_calls(self):
        a, b = tally(gemms=[gemm(bytes=10)]), tally(gemms=[gemm(bytes=15)])
        line = next(x for x in only_section(a, b, "gemms").lines if x.quantity == "bytes")
        assert (line.a, line.b, line.relative) == (40, 60, 0.5)

    def test_a_dtype_that_differs_is_told(self):
        a, b = tally(gemms=[gemm(dtype="bf16")]), tally(gemms=[gemm(dtype="fp8")])
        assert only_section(a, b, "gemms").lines[0].words == {"dtype": ("bf16", "fp8")}

    def test_two_bases_without_one_line_in_common_are_not_subtracted(self):
        a, b = tally(gemms=[gemm()]), tally(basis="measured", gemms=[gemm("mm", m=7)])
        section = only_section(a, b, "gemms")
        assert section.refused.startswith("no line of A (predicted) and B (measured) has the same")
        assert (section.lines, section.totals) == ((), ())


class TestTraffic:
    def test_what_is_issued_outside_autograd_is_matched_with_what_it_is_for(self):
        predicted = tally(
            traffic=[
                collective("forward", name="linear_qkv input"),
                collective("gradients", 1, 9216, name="gradients of norms"),
                collective("forward", 1, 77, name="to the next stage", collective="send"),
                collective("backward", 1, 77, name="to the stage before", collective="send"),
            ]
        )
        measured = tally(
            basis="measured",
            traffic=[
                collective("forward"),
                collective("outside autograd", 1, 9216),
                collective("outside autograd", 2, 77, collective="send"),
            ],
        )
        section = only_section(predicted, measured, "traffic")
        assert all(line.equal for line in section.lines)
        phases = {(line.key["collective"], line.key["phase"]) for line in section.lines}
        assert ("all_gather", "forward") in phases  # the other side shows it there: not merged
        assert ("send", "outside autograd") in phases
        assert any("counted as 'outside autograd'" in note for note in section.notes)

    def test_a_trace_that_does_not_tell_phases_is_held_against_their_sum(self):
        predicted = tally(traffic=[collective("forward"), collective("recompute", 3)])
        measured = tally(basis="measured", traffic=[collective("unknown", 7)])
        section = only_section(predicted, measured, "traffic")
        assert {line.key["phase"] for line in section.lines} == {"unknown"}
        assert all(line.equal for line in section.lines)

    def test_a_phase_that_both_know_is_not_merged(self):
        rows = [collective("forward"), collective("outside autograd")]
        moved = [replace(rows[0], calls_per_step=3), replace(rows[1], calls_per_step=5)]
        a, b = (tally(basis="measured", traffic=side) for side in (rows, moved))
        calls = [
            line
            for line in only_section(a, b, "traffic").lines
            if line.quantity == "calls_per_step"
        ]
        assert {(line.key["phase"], line.difference) for line in calls} == {
            ("forward", -1),
            ("outside autograd", 1),
        }

    def test_the_same_collective_for_two_tensors_is_one_line_of_a_recording(self):
        predicted = tally(traffic=[collective(name="a"), collective(name="b", calls=2)])
        measured = tally(basis="measured", traffic=[collective(calls=6)])
        section = only_section(predicted, measured, "traffic")
        assert (
            "calls_per_step",
            0,
            "TENSOR_MODEL_PARALLEL_GROUP",
            "all_gather",
            "forward",
            2,
            1024,
            6,
            6,
        ) in found(section)

    def test_groups_of_one_rank_move_nothing_and_are_left_out(self):
        a = tally(traffic=[collective()])
        b = tally(traffic=[collective(), collective(group="DATA", group_size=1)])
        section = only_section(a, b, "traffic")
        assert all(line.equal for line in section.lines)
        assert "collectives of a group of one rank" in section.notes[-1]

    def test_two_layouts_are_matched_without_sizes_and_say_what_changed(self):
        a = tally(basis="measured", traffic=[collective(scope="intra-node")])
        b = tally(
            basis="measured",
            traffic=[collective(group_size=4, size=512, scope="inter-node")],
            job=with_layout(tensor_model_parallel_size=4),
        )
        line = only_section(a, b, "traffic").lines[0]
        assert (line.quantity, line.a, line.b) == ("bytes_per_step", 4096, 2048)
        assert line.words == {
            "group_size": ("2", "4"),
            "bytes_per_call": ("1,024", "512"),
            "scope": ("intra-node", "inter-node"),
        }

    def test_a_side_without_any_collective_has_nothing_of_the_others(self):
        section = only_section(tally(traffic=[]), tally(traffic=[collective()]), "traffic")
        assert {line.only_in for line in section.lines} == {"B"}
        assert "bytes_per_call" in section.keys


class TestMemory:
    def test_rows_are_matched_by_rank_lifetime_and_name_over_chunks(self):
        def rows(*sizes):
            return [
                MemoryRow(rank=0, lifetime="resident", name="parameters", bytes=size, vpp=vpp)
                for vpp, size in enumerate(sizes)
            ]

        b = tally(memory=rows(30), job=with_layout(pipeline_model_parallel_size=2))
        section = only_section(tally(memory=rows(10, 20)), b, "memory")
        assert found(section) == [("bytes", 0, "resident", "parameters", 30, 30)]

    def test_what_a_process_has_resident_is_not_what_torch_allocates(self):
        allocated = tally(
            memory=[MemoryRow(rank=0, lifetime="resident", name="parameters", bytes=10)]
        )
        resident = tally(
            basis="measured",
            memory=[MemoryRow(rank=0, lifetime="whole run", name="peak resident", bytes=99)],
        )
        assert (
            "has the same rank, lifetime and name"
            in only_section(allocated, resident, "memory").refused
        )

    def test_peaks_and_moments_are_not_added_up(self):
        peak = MemoryPeakRow(
            rank=0,
            ranks="0–3",
            pp=0,
            in_flight=(2,),
            event="backward",
            peak_bytes=80,
            first_step_peak_bytes=70,
            checkpoint_peak_bytes=60,
            outside_bytes=20,
            total_bytes=100,
        )
        moment = MemoryMomentRow(
            rank=0,
            position=3,
            step="later",
            event="backward",
            microbatch=1,
            vpp=0,
            before_bytes=70,
            peak_bytes=80,
            after_bytes=60,
        )
        a = tally(memory_peaks=[peak], memory_timeline=[moment])
        b = tally(
            memory_peaks=[replace(peak, peak_bytes=88, total_bytes=108, event="forward")],
            memory_timeline=[replace(moment, position=9, peak_bytes=88)],
        )
        comparison = compare_tallies(a, b)
        peaks, moments = (sections[0] for sections in comparison.accounts.values())
        assert (peaks.totals, moments.totals) == ((), ())
        assert [(line.quantity, line.difference) for line in peaks.lines if line.difference] == [
            ("total_bytes", 8),
            ("peak_bytes", 8),
        ]
        assert peaks.lines[0].words == {"event": ("backward", "forward")}
        assert [line.quantity for line in moments.lines if not line.equal] == ["peak_bytes"]

    def test_changes_of_a_job_are_matched_by_their_name(self):
        change = MemoryChangeRow(
            name="micro_batch_size=1",
            total_bytes=10,
            fits=False,
            flops_per_step_executed=7,
            difference=0.0,
        )
        a = tally(memory_changes=[change])
        b = tally(
            memory_changes=[
                replace(change, total_bytes=9, fits=True),
                replace(change, name="bf16=true"),
            ]
        )
        section = only_section(a, b, "memory_changes")
        assert section.lines[0].words == {"fits": ("false", "true")}
        assert not any(line.exceeds(Fraction(0)) for line in section.lines if line.only_in)


class TestOtherAccounts:
    def test_parameters_by_name(self):
        a = tally(parameters=[ParametersRow(name="head", count=4, active=4)])
        b = tally(parameters=[ParametersRow(name="head", count=5, active=4)])
        assert found(only_section(a, b, "parameters")) == [
            ("count", "head", 4, 5),
            ("active", "head", 4, 4),
        ]

    def test_conventions_by_name(self):
        a = tally(conventions=[ConventionRow(name="palm", useful=4, difference=0, source="x")])
        b = tally(conventions=[ConventionRow(name="palm", useful=4.5, difference=0, source="x")])
        assert only_section(a, b, "conventions").lines[0].difference == 0.5

    def test_rates_of_a_log_need_equal_work(self):
        row = LoggedRow(name="palm", counted_flops_per_s=2.0, logged_flops_per_s=2.5, difference=0)
        other = tally(logged=[row], job=with_layout(seq_length=512))
        lines = only_section(tally(logged=[row]), other, "logged").lines
        assert [line.refused for line in lines] == ["not the same work"] * 2

    def test_losses_are_matched_by_iteration(self):
        rows = [
            LossRow(iteration=i, loss=3.0 - i, tokens=10 * i, wall_time_s=1.0 * i, useful_flops=i)
            for i in (1, 2, 3)
        ]
        section = only_section(tally(loss=rows[:2]), tally(loss=rows[1:]), "loss")
        assert {line.key["iteration"] for line in section.lines if line.compared} == {2}
        assert not any(line.exceeds(Fraction(0)) for line in section.lines)

    def test_process_groups_by_rank_and_name(self):
        row = GroupRow(group="T", group_size=2, ranks=(0, 1), nodes=1, scope="intra-node", rank=0)
        b = tally(groups=[replace(row, group_size=3, ranks=(0, 1, 2))])
        line = only_section(tally(groups=[row]), b, "groups").lines[0]
        assert (line.difference, line.words) == (1, {"ranks": ("0, 1", "0, 1, 2")})


class TestTime:
    def test_the_steps_of_a_rank_are_taken_by_their_median_and_warm_up_is_left_out(self):
        def steps(*durations):
            return [
                StepRow(step=i, rank=0, duration_ns=x, tokens=1, traced=False, warmup=i == 1)
                for i, x in enumerate(durations, start=1)
            ]

        a, b = tally(steps=steps(999, 10, 20, 60)), tally(steps=steps(1, 30, 30))
        durations, _ = compare_tallies(a, b).accounts["steps"]
        assert found(durations) == [("duration_ns", 0, 20, 30)]

    def test_losses_are_compared_at_the_same_step(self):
        def steps(*losses):
            return [
                StepRow(
                    step=i,
                    rank=rank,
                    duration_ns=5,
                    tokens=7,
                    traced=False,
                    warmup=False,
                    loss=loss if rank else None,
                )
                for i, loss in enumerate(losses, start=1)
                for rank in (0, 1)
            ]

        _, by_step = compare_tallies(
            tally(steps=steps(5.0, 4.0)), tally(steps=steps(5.0, 4.5))
        ).accounts["steps"]
        assert ("loss", 2, 4.0, 4.5) in found(by_step)
        assert ("tokens", 1, 7, 7) in found(by_step)

    def test_parts_of_a_step_are_held_against_its_span(self):
        a = recorded_tally()
        rows = [replace(row, idle_ns=row.idle_ns + 10**6) for row in a.accounts["time"]]
        times, groups = compare_tallies(a, replace(a, accounts={"time": rows})).accounts["time"]
        spans = sum(line.a for line in times.lines if line.quantity == "span_ns")
        assert times.lines[0].quantity == "idle_ns"
        assert times.lines[0].share == pytest.approx(10**6 / spans)
        assert {line.key["group"] for line in groups.lines} == {
            "TENSOR_MODEL_PARALLEL_GROUP",
            "DATA_PARALLEL_GROUP_WITH_CP",
        }

    def test_runs_of_other_ranks_are_compared_by_medians_over_all(self):
        a = recorded_tally()
        rows = [row for row in a.accounts["time"] if row.rank < 2]
        times, _ = compare_tallies(a, replace(a, accounts={"time": rows})).accounts["time"]
        assert times.keys == ()
        assert "medians are over all of them" in times.notes[0]

    def test_unequal_work_shows_times_and_gives_no_ratio(self):
        a = recorded_tally()
        b = replace(a, job=with_layout(global_batch_size=32))
        comparison = compare_tallies(a, b)
        times = [line for line in comparison.lines if line.unit in ("ns", "s", "token/s", "1")]
        assert times
        assert all(line.refused == "not the same work" for line in times)
        assert all(line.difference is None and line.relative is None for line in times)
        assert all(line.a == line.b for line in times)


class TestFigures:
    def figure(self, value=1.0, unit="s", convention="", origin=""):
        return Figure(
            value=value, unit=unit, basis="measured", convention=convention, origin=origin
        )

    def line(self, a, b, name="step_time_s"):
        comparison = compare_tallies(tally(summary={name: a}), tally(summary={name: b}))
        (line,) = comparison.figures
        return line

    def test_a_figure_is_compared_with_the_one_of_its_name(self):
        line = self.line(self.figure(2.0), self.figure(3.0))
        assert (line.difference, line.relative) == (1.0, 0.5)

    def test_another_unit_is_refused(self):
        line = self.line(self.figure(unit="s"), self.figure(unit="ms"))
        assert line.refused == "unit 's' against 'ms'"

    def test_another_convention_is_refused(self):
        line = self.line(self.figure(convention="palm"), self.figure(convention="bridge"))
        assert line.refused == "convention 'palm' against 'bridge'"

    def test_from_nothing_there_is_a_difference_and_no_ratio(self):
        line = self.line(self.figure(0, "byte"), self.figure(3, "byte"))
        assert (line.difference, line.relative) == (3, None)
        assert line.exceeds(Fraction(10**9))

    def test_words_are_equal_or_not(self):
        assert self.line(self.figure("a", ""), self.figure("a", "")).equal
        differing = self.line(
            self.figure(True, "true or false"), self.figure(False, "true or false")
        )
        assert (differing.difference, differing.exceeds(Fraction(10))) == (None, True)

    def test_a_value_that_is_not_known_is_no_difference(self):
        assert self.line(self.figure(None), self.figure(1.0)).refused == "not known in A"

    def test_losses_of_other_steps_are_refused(self):
        a, b = self.figure(3.0, "", origin="step 5"), self.figure(2.0, "", origin="step 9")
        assert self.line(a, b, "loss_last").refused == "step 5 against step 9"

    def test_a_figure_of_one_side_is_named_and_no_difference(self):
        comparison = compare_tallies(tally(summary={"mfu": self.figure(0.4, "1")}), tally())
        (line,) = comparison.figures
        assert (line.only_in, line.a, line.b) == ("A", 0.4, None)
        assert not comparison.beyond(Fraction(0))

    def test_what_differs_most_of_itself_comes_first(self):
        a = tally(summary={"x": self.figure(10.0), "y": self.figure(10.0), "z": self.figure(1.0)})
        b = tally(summary={"x": self.figure(11.0), "y": self.figure(5.0), "z": self.figure(1.0)})
        assert [line.quantity for line in compare_tallies(a, b).figures] == ["y", "x", "z"]


class TestExtremes:
    def test_numbers_beyond_every_float_get_a_difference_and_no_ratio(self):
        def of(value):
            figure = Figure(value=value, unit="FLOP", basis="predicted")
            return tally(summary={"x": figure})

        line = compare_tallies(of(1), of(10**400)).figures[0]
        assert (line.difference, line.relative) == (10**400 - 1, None)

    def test_a_median_of_two_counts_stays_exact(self):
        def steps(*durations):
            return [
                StepRow(step=i, rank=0, duration_ns=x, tokens=1, traced=False, warmup=False)
                for i, x in enumerate(durations)
            ]

        huge = 2 * 10**400
        a, b = tally(steps=steps(2, 4)), tally(steps=steps(huge, huge + 2))
        durations, _ = compare_tallies(a, b).accounts["steps"]
        assert found(durations) == [("duration_ns", 0, 3, huge + 1)]

    def test_a_world_of_any_size_is_not_gone_through(self):
        job = with_layout(world_size=10**15)
        summed, some = tally(gemms=[gemm(rank=None)]), tally(gemms=[gemm()], job=job)
        assert "of 1,000,000,000,000,000" in only_section(summed, some, "gemms").refused


class TestChoice:
    def test_accounts_that_one_side_alone_has_are_named(self):
        comparison = compare_tallies(tally(gemms=[gemm()], flops=[]), tally(flops=[], traffic=[]))
        assert (comparison.only_in_a, comparison.only_in_b) == (["gemms"], ["traffic"])

    def test_only_the_accounts_asked_for(self):
        both = tally(gemms=[gemm()], flops=[], summary={})
        comparison = compare_tallies(both, both, accounts=["gemms"])
        assert list(comparison.accounts) == ["gemms"]
        assert comparison.figures == ()

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("gems", r"account 'gems' is not known \(did you mean 'gemms'\?\)"),
            ("traffic", "account 'traffic' is not in B: what both have is summary, gemms"),
        ],
    )
    def test_an_account_that_is_not_there_is_refused(self, name, said):
        a, b = tally(gemms=[gemm()], traffic=[]), tally(gemms=[gemm()])
        with pytest.raises(InputError, match=said):
            compare_tallies(a, b, accounts=[name])
