"""Fits, cliffs, crossovers and verdicts on curves whose truth is known. The seeds are fixed."""

import math

import numpy as np
import pytest

from lrbench import stats
from lrbench.errors import SpecError
from lrbench.scaling.beyond import extrapolate, longest_within
from lrbench.scaling.cliffs import critical_f, steep_slopes
from lrbench.scaling.crossover import MARGIN, crossover, generation_ratios, ratio_at
from lrbench.scaling.curve import describe
from lrbench.scaling.drift import change
from lrbench.scaling.fits import Slope, has_overhead, local_slopes, loglog, with_offset
from lrbench.scaling.guide import LAWS, consistent_laws
from lrbench.scaling.landmarks import HALF, landmarks, outgrown
from lrbench.scaling.pace import covering, trend

SIX = [512 * 2**i for i in range(6)]
ELEVEN = [64 * 2**i for i in range(11)]


def noisy(values: np.ndarray, sd: float, rng: np.random.Generator) -> list[float]:
    return (values * np.exp(sd * rng.standard_normal(len(values)))).tolist()


def power(lengths: list[int], exponent: float, overhead: float = 0.0) -> np.ndarray:
    return (np.asarray(lengths, float) / lengths[0]) ** exponent + overhead


# exponents


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("overhead", [0.0, 0.5, 3.0])
def test_the_exponent_is_found_under_an_overhead(exponent: float, overhead: float) -> None:
    """F1: noise 3 %; ± 0.08, with a bias of at most 0.02 and an sd of at most 0.05."""
    rng = np.random.default_rng(0)
    fits = [with_offset(SIX, noisy(power(SIX, exponent, overhead), 0.03, rng)) for _ in range(30)]
    found = np.array([fit.exponent for fit in fits if fit])
    assert len(found) == 30 and np.abs(found - exponent).max() <= 0.08
    assert abs(found.mean() - exponent) <= 0.02 and found.std() <= 0.05


def test_without_noise_everything_is_exact() -> None:
    fit = with_offset(SIX, (7 * power(SIX, 1.5, 3.0)).tolist())
    assert fit is not None
    assert fit.exponent == pytest.approx(1.5, abs=1e-4) and fit.offset == pytest.approx(21, rel=1e-3)
    straight = loglog(SIX, (7 * power(SIX, 2.0)).tolist())
    assert straight.exponent == pytest.approx(2) and straight.low == pytest.approx(2) == straight.high


def test_the_headline_is_the_offset_fit_only_where_there_is_an_overhead() -> None:
    for overhead, headline in ((0.0, "loglog"), (0.05, "loglog"), (0.5, "offset"), (3.0, "offset")):
        values = power(SIX, 1.0, overhead).tolist()
        curve = describe(SIX, values)
        assert curve and curve.headline == headline == ("offset" if has_overhead(curve.offset, values) else "loglog")


def test_the_interval_covers_the_truth_where_the_choice_of_the_fit_is_chance() -> None:
    """An overhead near a tenth, noise 5 %: whichever fit is the headline, its interval knows of the other."""
    rng = np.random.default_rng(4)
    runs = [describe(SIX, noisy(power(SIX, 1.0, 0.1), 0.05, rng)) for _ in range(200)]
    found = [run for run in runs if run]
    assert {run.headline for run in found} == {"loglog", "offset"}
    assert np.mean([run.low <= 1 <= run.high for run in found]) >= 0.90
    pairs = [(one, other) for one in found for other in found if one.headline != other.headline]
    assert np.mean([one.low <= other.high and other.low <= one.high for one, other in pairs]) >= 0.97


def test_an_overhead_that_is_plain_leaves_the_interval_to_its_fit() -> None:
    values = noisy(power(SIX, 1.0, 3.0), 0.01, np.random.default_rng(5))
    curve = describe(SIX, values)
    assert curve and curve.offset and (curve.low, curve.high) == (curve.offset.low, curve.offset.high)


def test_too_few_lengths_give_less_and_never_a_made_up_interval() -> None:
    assert describe([512], [1.0]) is None
    two = describe([512, 1024], [1.0, 4.0])
    assert two and two.exponent == pytest.approx(2) and math.isnan(two.low) and two.offset is None
    three = describe([512, 1024, 2048], [1.0, 4.1, 16.0])
    assert three and three.low < 2 < three.high and three.laws == [] and three.tail is None


def test_a_curve_without_an_exponent_is_given_none_by_its_offset() -> None:
    """All overhead, or all noise: the fit with an offset runs into its bounds and is no headline."""
    rng = np.random.default_rng(15)
    for _ in range(20):
        curve = describe(SIX, noisy(np.ones(6), 0.5, rng))
        assert curve and (curve.headline == "loglog" or 0.01 < curve.exponent < 3.99)


@pytest.mark.parametrize("overhead", [0.0, 3.0])
def test_the_interval_covers_the_truth_under_drift(overhead: float) -> None:
    """F2: a drift of 8 % at each point; one sweep, 300 trials; at least 0.90."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(300):
        values = noisy(power(SIX, 2.0, overhead), 0.08, rng)
        straight = loglog(SIX, values)
        bent = with_offset(SIX, values) if overhead else None
        fit = bent if bent and has_overhead(bent, values) else straight
        inside += fit.low <= 2 <= fit.high
    assert inside / 300 >= 0.90


@pytest.mark.parametrize("sweeps", [3, 5])
def test_the_interval_over_sweeps_covers_the_truth(sweeps: int) -> None:
    """F2 over sweeps: 300 trials; at least 0.90."""
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(300):
        found = stats.over_seeds([loglog(SIX, noisy(power(SIX, 1.5), 0.08, rng)).exponent for _ in range(sweeps)])
        inside += found.low <= 1.5 <= found.high
    assert inside / 300 >= 0.90


def test_a_curve_of_three_sweeps_takes_its_interval_from_them() -> None:
    rng = np.random.default_rng(3)
    sweeps = [noisy(power(SIX, 2.0), 0.05, rng) for _ in range(3)]
    curve = describe(SIX, np.median(sweeps, axis=0).tolist(), sweeps=sweeps)
    over = stats.over_seeds([loglog(SIX, sweep).exponent for sweep in sweeps])
    assert curve and (curve.low, curve.high) == (over.low, over.high)


def test_local_exponents_carry_the_error_of_two_points() -> None:
    slopes = local_slopes([512, 1024, 4096], [1.0, 2.0, 32.0], noise=0.07)
    assert [slope.exponent for slope in slopes] == pytest.approx([1.0, 2.0])
    assert [slope.error for slope in slopes] == pytest.approx(
        [0.07 * 2**0.5 / math.log(2), 0.07 * 2**0.5 / math.log(4)]
    )


def test_the_far_end_has_an_exponent_of_its_own() -> None:
    n = np.asarray(SIX, float)
    curve = describe(SIX, (n + n**2 / 2000).tolist(), tail_from=2048)
    assert curve and curve.tail and curve.tail.lengths == SIX[-4:]
    assert curve.tail.exponent > curve.loglog.exponent + 0.1


# laws


def laws(values: list[float]) -> list[str]:
    return consistent_laws(SIX, values, with_offset(SIX, values))


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_named_at_little_noise_and_never_lost(law: str) -> None:
    rng = np.random.default_rng(4)
    shape = np.asarray(LAWS[law](np.asarray(SIX, float)))
    alone = kept = 0
    for _ in range(40):
        clean = laws(noisy(shape / shape[0] + 0.5, 0.003, rng))
        rough = laws(noisy(shape / shape[0] + 0.5, 0.03, rng))
        alone += clean == [law]
        kept += law in rough
    assert alone >= 36 and kept >= 36


def test_n_and_n_log_n_are_both_named_where_noise_hides_which() -> None:
    rng = np.random.default_rng(5)
    both = [laws(noisy(power(SIX, 1.05), 0.1, rng)) for _ in range(20)]
    assert sum({"n", "n log n"} <= set(found) for found in both) >= 15
    assert not any("n^2" in found for found in both)


# cliffs


def test_the_critical_f_is_that_of_the_method() -> None:
    """Simulated, for equally spaced logs: 24 for 6 lengths, 13 for 11."""
    for count, critical in ((6, 24), (11, 13)):
        basis = tuple((1.0, float(place)) for place in range(count))
        assert critical_f(basis) == pytest.approx(critical, rel=0.1)


def test_a_step_is_detected_and_its_absence_is_not_an_alarm() -> None:
    """F4: x2 in 11 lengths, noise 5 %: detected at least 0.9; alarms at most 0.08."""
    rng = np.random.default_rng(6)
    stepped, straight = 0, 0
    for _ in range(80):
        at = int(rng.integers(3, 9))
        values = power(ELEVEN, 1.0) * np.where(np.arange(11) >= at, 2.0, 1.0)
        with_step = describe(ELEVEN, noisy(values, 0.05, rng), noise=0.05)
        without = describe(ELEVEN, noisy(power(ELEVEN, 1.0), 0.05, rng), noise=0.05)
        stepped += bool(with_step and with_step.step and with_step.step.found)
        straight += bool(without and without.step and without.step.found)
    assert stepped / 80 >= 0.9 and straight / 80 <= 0.08


def test_a_flagged_curve_has_one_exponent_for_each_side_that_is_long_enough() -> None:
    values = power(ELEVEN, 1.0) * np.where(np.arange(11) >= 6, 3.0, 1.0)
    curve = describe(ELEVEN, noisy(values, 0.01, np.random.default_rng(7)), noise=0.01)
    assert curve and curve.cliff_at == ELEVEN[6]
    assert [side.lengths for side in curve.sides] == [ELEVEN[:6], ELEVEN[6:]]
    assert [side.exponent for side in curve.sides] == pytest.approx([1, 1], abs=0.03)
    early = describe(ELEVEN, (power(ELEVEN, 1.0) * np.where(np.arange(11) >= 2, 3.0, 1.0)).tolist(), noise=0.01)
    assert early and [side.lengths for side in early.sides] == [ELEVEN[2:]]


def test_an_overhead_is_no_cliff() -> None:
    for overhead in (0.5, 3.0):
        rng = np.random.default_rng(8)
        alarms = 0
        for _ in range(30):
            curve = describe(SIX, noisy(power(SIX, 2.0, overhead), 0.03, rng), noise=0.03)
            alarms += bool(curve and curve.cliff_at)
        assert alarms <= 3


def test_the_alarm_of_local_exponents_knows_the_noise() -> None:
    assert steep_slopes([Slope(1.0, 0.01), Slope(1.5, 0.01)], 1.0) == [1]
    assert steep_slopes([Slope(1.5, 0.2), Slope(1.25, 0.01)], 1.0) == []


# crossovers


def ratios(means: list[float], sd: float, generations: int = 5, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    lengths = SIX[: len(means)]
    return [
        ratio_at(n, (mean + sd * rng.standard_normal(generations)).tolist(), len(means))
        for n, mean in zip(lengths, means, strict=True)
    ]


def test_a_crossover_is_found_with_its_interval() -> None:
    truth = 3000
    inside = 0
    for seed in range(60):
        means = [math.log(truth / n) for n in SIX]
        found = crossover(ratios(means, 0.05, seed=seed))
        assert found.kind == "at" and found.cheaper_after == "a" and found.length == pytest.approx(truth, rel=0.12)
        assert found.low is not None and found.high is not None
        inside += found.low <= truth <= found.high
    assert inside >= 57


@pytest.mark.parametrize(
    ("means", "kind", "after"),
    [
        ([-0.5, -0.6, -0.7, -0.8, -0.9, -1], "below", "a"),
        ([0.5, 0.6, 0.7, 0.8, 0.9, 1], "above", "b"),
        ([-0.5, -0.3, 0.2, 0.8, 0.9, 1], "at", "b"),
        ([0.5, -0.5, 0.5, -0.5, 0.5, -0.5], "several", None),
        ([0.0, 0.0, 0.0, -0.5, -0.9, -1], "indistinguishable", "a"),
        ([0.5, 0.4, 0.3, 0.0, 0.0, 0.0], "indistinguishable", None),
    ],
)
def test_a_crossover_outside_the_measured_lengths_is_never_a_number(
    means: list[float], kind: str, after: str | None
) -> None:
    found = crossover(ratios(means, 0.01))
    assert (found.kind, found.cheaper_after) == (kind, after)
    assert (found.length is not None) == (kind == "at")


def test_equal_curves_are_indistinguishable() -> None:
    """F6: two equal curves, ratio noise 10 %."""
    found = [crossover(ratios([0.0] * 6, 0.1, seed=seed)) for seed in range(100)]
    assert sum(one.kind == "indistinguishable" for one in found) >= 98
    assert (found[0].low, found[0].high) == (SIX[0], SIX[-1])


def test_two_changes_of_sign_within_the_margin_are_a_stretch() -> None:
    found = crossover(ratios([0.6, 0.05, -0.05, 0.05, -0.6], 0.005))
    assert (found.kind, found.low, found.high, found.cheaper_after) == ("indistinguishable", 1024, 4096, "a")
    assert pytest.approx(0.0953, abs=1e-3) == MARGIN


def test_nothing_is_said_without_rounds() -> None:
    assert crossover([]).kind == "unknown"
    assert crossover([ratio_at(512, [0.5]), ratio_at(1024, [-0.5])]).kind == "unknown"


def test_of_a_single_round_the_doubled_noise_floor_stands_for_the_interval() -> None:
    means = [0.8, 0.5, -0.2, -0.9]
    single = [ratio_at(n, [mean], floor=0.05) for n, mean in zip(SIX, means, strict=False)]
    found = crossover(single)
    assert found.kind == "at" and found.length is not None and 1024 < found.length < 2048
    assert crossover([ratio_at(n, [0.1], floor=0.4) for n in SIX]).kind == "indistinguishable"
    # lengths that say nothing make no stretch of indistinguishable ones
    assert crossover([*ratios([0.8, 0.9], 0.01), ratio_at(4096, [0.9])]).kind == "above"


def test_a_generations_ratio_is_taken_within_its_rounds() -> None:
    logs = generation_ratios([[2.0, 8.0], [3.0]], [[1.0, 2.0], [3.0, 9.0], [1.0]])
    assert logs == pytest.approx([math.log(8) / 2, 0.0])


# beyond what was measured


def test_extrapolation_goes_twice_as_far_and_no_farther() -> None:
    """F6: x4 is refused."""
    values = power(SIX, 2.0).tolist()
    found = extrapolate(SIX, values, 32768)
    assert found.value == pytest.approx(4096) and (found.low, found.high) == pytest.approx((4096 / 1.5, 4096 * 1.5))
    with pytest.raises(SpecError, match="more than 2 times"):
        extrapolate(SIX, values, 65536)
    behind = extrapolate(ELEVEN, power(ELEVEN, 1.0).tolist(), 131072, cliff_at=8192)
    assert behind.high / behind.low == pytest.approx(4)


def test_the_longest_length_within_a_budget() -> None:
    measured = {512: 1e6, 1024: 4e6, 2048: 16e6}
    assert longest_within(8e6, measured, {}) == (1024, 2048, 1448, False)
    assert longest_within(40e6, measured, {4096: 64e6}) == (2048, 4096, 3238, False)
    assert longest_within(40e6, measured, {}) == (2048, None, 3238, True)
    assert longest_within(1e9, measured, {}) == (2048, None, 4096, True)
    flat = {1024: 1e7, 2048: 1e7 * (1 + 1e-9)}
    assert longest_within(1e9, flat, {}) == (2048, None, 4096, True), "at a constant number of tokens"
    assert longest_within(1e5, measured, {}) == (None, 512, None, False)


def test_lengths_that_were_only_predicted_bound_the_longest_one() -> None:
    measured, predicted = {512: 1e6, 1024: 4e6}, {2048: 16e6, 4096: 64e6, 8192: 256e6}
    assert longest_within(40e6, measured, predicted) == (1024, 4096, 3238, False)
    assert longest_within(1e9, measured, predicted) == (1024, None, 8192, True)


# landmarks


def test_landmarks_are_what_the_environment_tells() -> None:
    machine = {"caches": {"L1 data": "48K", "L2": "2048K", "L3": "32M"}, "memory_total_bytes": 2**34}
    assert landmarks(machine, "cpu") == {"L2": 2**21, "L3": 2**25, HALF: 2**33}
    assert landmarks({"caches": None, "memory_total_bytes": None}, "cpu") == landmarks({}, "cpu") == {}
    assert landmarks({"caches": {"L2": "much"}}, "cpu") == {}
    gpus = [{"memory_mib": "16384"}, {"memory_mib": "16384"}]
    assert landmarks(machine | {"gpus": gpus}, "cuda:1") == {HALF: 2**33}
    assert landmarks(machine | {"gpus": [*gpus, {"memory_mib": None}]}, "cuda") == {}


def test_a_curve_outgrows_a_size_at_the_first_length_above_it() -> None:
    peaks = {512: 1e6, 1024: 4e6, 2048: 16e6}
    assert outgrown(peaks, {"L2": 2**21, "L3": 2**25}) == [("L2", 2**21, 512, 1024)]
    assert outgrown(peaks, {"L2": 10}) == [("L2", 10, None, 512)]
    assert outgrown({}, {"L2": 10}) == []


# drift


def test_drift_is_a_change_of_ratios_beyond_chance_and_noise() -> None:
    rng = np.random.default_rng(9)
    old = (0.03 * rng.standard_normal(8)).tolist()
    new = (math.log(1.3) + 0.03 * rng.standard_normal(8)).tolist()
    moved, still = change(new, old), change(old, list(reversed(old)))
    assert moved.low < 1.3 < moved.high and moved.beyond(0.05) and not moved.beyond(0.5)
    assert not still.beyond(0.0) and not change([0.5], [0.0]).beyond(0.0)


# verdicts over seeds


def pairs(gap_sd: float, seeds: int, trials: int, seed: int, margin: float = 0.1) -> list[stats.Paired]:
    """Scores of two methods with sd 1 and correlation 0.5 over seeds."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((trials, 1, seeds)) * 0.5**0.5
    scores = shared + rng.standard_normal((trials, 2, seeds)) * 0.5**0.5
    return [stats.paired((a + gap_sd).tolist(), b.tolist(), margin) for a, b in scores]


def alone(pair: stats.Paired) -> str:
    return stats.verdicts([pair])[0]


@pytest.mark.parametrize("seeds", [5, 10])
def test_equal_methods_are_seldom_told_apart(seeds: int) -> None:
    """S1: `better` at most 0.06 of the time, either way round."""
    told = [alone(pair) for pair in pairs(0.0, seeds, 2000, seed=10)]
    assert sum(verdict in ("better", "worse") for verdict in told) / 2000 <= 0.06


def test_a_gap_of_two_sd_is_found_with_ten_seeds() -> None:
    """S1: at least 0.9."""
    told = [alone(pair) for pair in pairs(2.0, 10, 500, seed=11)]
    assert told.count("better") / 500 >= 0.9


def test_no_difference_is_said_only_where_it_was_shown() -> None:
    """S2: equal methods, 5 seeds: equivalent only if both one-sided tests say so, else undecided."""
    within_two_sd = [(alone(pair), pair) for pair in pairs(0.0, 5, 500, seed=12, margin=2.0)]
    for verdict, pair in within_two_sd:
        # two one-sided tests at 5 % are the 90 % interval
        half = (pair.high - pair.low) / 2 * 2.131847 / 2.776445
        assert (verdict == "equivalent") == (abs(pair.gap) + half < pair.margin)
    assert 0.3 < sum(verdict == "equivalent" for verdict, _ in within_two_sd) / 500 < 1
    told = [alone(pair) for pair in pairs(0.0, 5, 500, seed=13)]
    assert "equivalent" not in told and told.count("undecided") / 500 >= 0.94


def test_a_table_is_corrected_for_its_size() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    pair = stats.Paired(1.0, 0.1, 1.9, 5, 0.1, p_gap=0.03, p_apart=1.0)
    none = stats.Paired(0.0, -1, 1, 5, 0.1, p_gap=0.9, p_apart=1.0)
    assert stats.verdicts([pair]) == ["better"]
    assert stats.verdicts([pair, none]) == ["undecided", "undecided"]


def test_a_table_of_equal_methods_names_a_winner_in_one_of_twenty() -> None:
    rng = np.random.default_rng(14)
    wrong = 0
    for _ in range(300):
        scores = rng.standard_normal((6, 10))
        table = [stats.paired(row.tolist(), scores[0].tolist(), 0.1) for row in scores[1:]]
        wrong += bool({"better", "worse"} & set(stats.verdicts(table)))
    assert wrong / 300 <= 0.08


def test_the_margin_is_a_point_or_two_errors_of_the_test_set() -> None:
    assert stats.default_margin(100_000) == 0.01
    assert stats.default_margin(1000) == pytest.approx(0.0316, abs=1e-4)


# the machine's pace


def test_a_pace_that_falls_with_length_has_a_negative_trend() -> None:
    lengths = [512, 1024, 2048, 4096]
    assert trend(lengths, {n: 3e11 * n**-0.2 for n in lengths}) == pytest.approx(-0.2)
    assert trend(lengths, {512: 3e11, 1024: 1e11}) == 0.0, "two lengths are no trend"


def test_an_interval_holds_the_exponent_in_seconds_and_in_products() -> None:
    """A machine that slows down by n^-0.2 makes a linear curve look like n^1.2; both are within."""
    lengths = [512, 1024, 2048, 4096, 8192]
    slowed = describe(lengths, [n**1.2 for n in lengths])
    assert slowed is not None and slowed.low > 1.1
    low, high = covering(slowed.low, slowed.high, trend(lengths, {n: n**-0.2 for n in lengths}))
    assert low <= 1.0 + 1e-9 and high == slowed.high
    assert covering(0.9, 1.1, 0.3) == pytest.approx((0.9, 1.4))
    assert all(math.isnan(end) for end in covering(math.nan, math.nan, 0.3)), "no interval stays none"
