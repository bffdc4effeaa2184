"""The promised performance ratios. Each test also writes its section of docs/measured/benchmarks.md."""

from __future__ import annotations

import pytest
from bench import (
    build_time,
    calibrating,
    executor,
    executorch_backend,
    exporting,
    float_layers,
    forms,
    grid_sampler,
    hardening,
    import_time,
    integer_executor,
    integer_layers,
    integer_lowering,
    integer_widths,
    large_model,
    layout,
    lowering,
    observers,
    partitioning,
    pt2_loading,
    pte_writing,
    quantizing,
    threads,
)

pytestmark = [pytest.mark.bench, pytest.mark.filterwarnings("ignore")]


def test_lowering_is_a_hundred_and_fifty_times_as_fast_as_executorch() -> None:
    result = lowering.run()
    assert lowering.section(result).publish() == 0, result


def test_a_large_model_is_lowered_and_saved_at_the_speed_of_memory() -> None:
    result = large_model.run()
    assert large_model.section(result).publish() == 0, result


def test_the_executor_takes_no_more_time_than_torch() -> None:
    result = executor.run()
    assert executor.section(result).publish() == 0, result


def test_integer_convolutions_take_at_most_one_and_three_tenths_of_onednns_time() -> None:
    result = integer_layers.run()
    assert integer_layers.section(result).publish() == 0, result


def test_int16_takes_at_most_two_and_a_half_times_as_long_as_int8() -> None:
    result = integer_widths.run()
    assert integer_widths.section(result).publish() == 0, result


def test_convolutions_of_floats_take_at_most_nine_tenths_of_onednns_time() -> None:
    result = float_layers.run()
    assert float_layers.section(result).publish() == 0, result


def test_each_form_of_contractions_saves_a_twentieth_of_the_time_of_a_network() -> None:
    result = forms.run()
    assert forms.section(result).publish() == 0, result


def test_two_threads_gain_nine_tenths_of_what_two_cores_can_gain() -> None:
    result = threads.run()
    assert threads.section(result).publish() == 0, result


def test_integer_lowering_is_three_hundred_times_as_fast_as_executorch() -> None:
    result = integer_lowering.run()
    assert integer_lowering.section(result).publish() == 0, result


def test_a_layout_plan_of_five_thousand_nodes_takes_milliseconds() -> None:
    result = layout.run()
    assert layout.section(result).publish() == 0, result


def test_the_fewest_groups_are_found_a_hundred_times_as_fast_as_torchs_from_1000_nodes_on() -> None:
    result = partitioning.run()
    assert partitioning.section(result).publish() == 0, result


def test_int8_takes_nine_tenths_of_fp32_and_a_fiftieth_of_the_reference_model() -> None:
    result = integer_executor.run()
    assert integer_executor.section(result).publish() == 0, result


def test_samples_take_two_thirds_of_the_time_of_torch_and_a_quarter_of_the_time_of_the_expansion() -> None:
    result = grid_sampler.run()
    assert grid_sampler.section(result).publish() == 0, result


def test_observers_are_five_times_as_fast_as_torchaos_and_no_less_exact() -> None:
    result = observers.run()
    assert observers.section(result).publish() == 0, result


def test_quantizing_takes_a_tenth_of_the_time_of_arms_quantizer() -> None:
    result = quantizing.run()
    assert quantizing.section(result).publish() == 0, result


def test_calibration_takes_little_more_than_plain_runs_and_quantize_a_tenth_of_the_time_of_torchao() -> None:
    result = calibrating.run()
    assert calibrating.section(result).publish() == 0, result


def test_import_is_cheap() -> None:
    result = import_time.run()
    assert import_time.section(result).publish() == 0, result


def test_the_extension_builds_in_eight_minutes_of_cpu() -> None:
    result = build_time.run()
    assert build_time.section(result).publish() == 0, result


def test_protection_against_faults_of_memory_takes_two_hundredths_of_the_time_at_most() -> None:
    result = hardening.run()
    assert hardening.section(result).publish() == 0, result


def test_preprocess_is_a_hundred_times_as_fast_as_arms() -> None:
    result = executorch_backend.run()
    assert executorch_backend.section(result).publish() == 0, result


def test_a_pt2_file_is_read_fifty_times_as_fast_as_by_torch() -> None:
    result = pt2_loading.run()
    assert pt2_loading.section(result).publish() == 0, result


def test_a_pte_file_is_written_a_hundred_times_as_fast_as_by_executorch() -> None:
    result = pte_writing.run()
    assert pte_writing.section(result).publish() == 0, result


def test_the_export_flow_is_thirty_times_as_fast_as_arms() -> None:
    result = exporting.run()
    assert exporting.section(result).publish() == 0, result
