"""The ListOps task: its alphabet, its generator against a slow reference, its files and its checks."""

import hashlib
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import listops_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lrbench.errors import Missing, SpecError
from lrbench.loaders import listops, listops_grammar, listops_tokens
from lrbench.loaders.base import DataRequest, Example, TaskData
from lrbench.loaders.blocks import Block, BlockSplit
from lrbench.loaders.listops_tokens import decode, encode, evaluate

ROOT = Path(__file__).parents[1]
GENUINE = ROOT.parent / "shared" / "data" / "listops"
genuine = pytest.mark.skipif(not GENUINE.is_dir(), reason=f"no genuine ListOps files in {GENUINE}")

PAPER = DataRequest("listops", 2000, (16000, 2000, 2000))
SMALL = DataRequest("listops", 64, (8000, 1000, 1000))
SMALL_WINDOW = {"shortest": 10, "longest": 60}
# content of 64 + 16 + 16 trees of seed 0 with 10 to 60 tokens, and of 20 + 5 + 5 of seed 1 with 501 to 1999
FEW = "f1315342cc5b1432ed219dfa7c25632b7583425d49fe21bedf77dbbe8d3d2d7b"
LONG = "afe594248e0d5e8824a763125ada8aaee8117c640de1b26a9500797cf695cf69"
FIRST = "[MAX 6 7 0 3 [SM 4 7 2 5 9 2 6 ] 7 9 7 7 ]\nanswer: 9"
CHANCE = 1e-3  # a fair generator fails a test of this level once in a thousand seeds; the seeds here are fixed

WORKED = [  # expression, answer, tokens
    ("[MIN 7 3 ]", 3, 4),
    ("[MAX 4 8 1 ]", 8, 5),
    ("[MED 2 9 4 ]", 4, 5),
    ("[MED 1 2 ]", 1, 4),
    ("[MED 0 1 ]", 0, 4),
    ("[MED 3 8 5 6 ]", 5, 6),
    ("[MED 0 9 9 0 ]", 4, 6),
    ("[MED 7 7 6 6 ]", 6, 6),
    ("[SM 7 8 ]", 5, 4),
    ("[SM 9 9 9 9 9 9 9 9 9 9 ]", 0, 12),
    ("[MAX [MIN 5 9 ] [SM 6 7 ] ]", 5, 10),
    ("[MED [MAX 1 8 ] [MIN 6 3 ] ]", 5, 10),
    ("[SM [MED 1 2 ] [MED 3 4 ] ]", 4, 10),
    ("[SM [SM 9 9 ] [SM 9 9 9 ] ]", 5, 11),
    ("[SM [MED 1 4 7 8 ] [MAX 2 2 ] 3 ]", 0, 13),
    ("[SM 2 [SM 3 [SM 4 [SM 5 6 ] ] ] ]", 0, 13),
    ("[MED 4 [MED 4 [MED 4 9 ] 9 ] 9 0 ]", 5, 13),
    ("[MIN [MAX 3 1 ] [MED 6 9 2 ] [SM 5 5 5 ] ]", 3, 16),
    ("[MED [SM 8 4 ] [MIN 7 [MAX 0 6 ] 9 ] 5 1 ]", 3, 16),
    ("[MAX 1 [MED [SM 3 9 ] 7 [MIN 8 6 4 ] ] 0 ]", 4, 16),
    ("[MIN 9 [MAX 8 [MIN 7 [MAX 6 [MIN 5 4 ] ] ] ] ]", 8, 16),
    ("[MAX 2 5 [MIN 6 1 ] 0 3 [MED 2 4 7 9 8 ] ]", 7, 17),
    ("[SM [MAX 9 0 ] [MIN 9 0 ] [MED 9 0 ] [SM 9 0 ] ]", 2, 18),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def paper(cache: Path) -> TaskData:
    """20,000 trees of the published window, as many as the specification's table was counted from."""
    return listops.load(PAPER, cache)


@pytest.fixture(scope="module")
def small(cache: Path) -> TaskData:
    return listops.load(SMALL, cache, **SMALL_WINDOW)


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[tuple[int, int, int, int]]]:
    """(length, value, arguments of the root, depth) of the reference's trees in the windows of both presets."""
    source = random.Random(7)
    kept: dict[str, list[tuple[int, int, int, int]]] = {"paper": [], "small": []}
    for _ in range(24000):
        tree = reference.draw(source)
        if isinstance(tree, int):
            continue
        length = len(reference.tokens(tree))
        for name, low, high in (("paper", 501, 1999), ("small", 10, 60)):
            if low <= length <= high:
                kept[name].append((length, reference.value(tree), len(tree[1]), reference.depth(tree)))
    return kept


def examples(data: TaskData) -> list[Example]:
    return [split[index] for split in data.splits.values() for index in range(len(split))]


def root_arity(ids: np.ndarray) -> int:
    """Arguments of the outermost operator: whatever begins at nesting 1, plain digits and openers alike."""
    opens, closes = (ids >= 11) & (ids <= 14), ids == 15
    nesting = np.cumsum(opens) - np.cumsum(closes)
    before = nesting - opens.astype(int) + closes  # of each token's own start
    return int(((before[1:] == 1) & ~closes[1:]).sum())


def nesting(ids: np.ndarray) -> int:
    return int(np.cumsum(((ids >= 11) & (ids <= 14)).astype(int) - (ids == 15)).max())


def same_distribution(ours: list[int] | list[float], theirs: list[int] | list[float]) -> float:
    """The p-value of two rows of counts coming from one distribution."""
    table = np.array([ours, theirs])
    return float(stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue)


class TestAlphabet:
    @pytest.mark.parametrize(("text", "answer", "length"), WORKED)
    def test_worked_examples(self, text: str, answer: int, length: int) -> None:
        written = reference.written(reference.parse(text.split()))
        assert len(written.split()) == 3 * length - 2
        for form in (text, written):
            ids = encode(form)
            assert ids.size == length
            assert decode(ids) == text
            assert evaluate(ids) == answer

    def test_the_published_written_form(self) -> None:
        text = "( ( ( ( [MAX 4 ) ( ( ( [MIN 2 ) 3 ) ] ) ) 1 ) ] )"
        assert decode(encode(text)) == "[MAX 4 [MIN 2 3 ] 1 ]"
        assert reference.written(reference.parse(decode(encode(text)).split())) == text

    def test_the_table_is_fixed(self) -> None:
        assert encode("0 1 2 3 4 5 6 7 8 9 [MIN [MAX [MED [SM ]").tolist() == list(range(1, 16))
        assert encode("[MAX 2 9 [MIN 4 7 ] 0 ]").tolist() == [12, 3, 10, 11, 5, 8, 15, 1, 15]

    @pytest.mark.parametrize(
        "text", ["[FIRST 1 2 ]", "10", "[min 1 2 ]", "[MIN1 2 ]", "[MIN 1 2]", "é", "\x80", "1 () 2"]
    )
    def test_other_words_are_unknown(self, text: str) -> None:
        assert 16 in encode(text)

    @pytest.mark.parametrize("text", ["[MIN  1\t2 ]", " [MIN 1 2 ] ", "[MIN 1 2 ]\n"])
    def test_white_space_is_free(self, text: str) -> None:
        assert decode(encode(text)) == "[MIN 1 2 ]"

    def test_brackets_matter(self) -> None:
        left, right = "[SM 1 [MAX 2 3 ] 4 ]", "[SM 1 [MAX 2 3 4 ] ]"
        assert encode(left).tolist() != encode(right).tolist()
        assert (evaluate(encode(left)), evaluate(encode(right))) == (8, 5)

    def test_the_same_ids_in_five_processes(self) -> None:
        code = (
            "from lrbench.loaders.listops_tokens import encode; print(encode('[MAX 2 9 [MIN 4 7 ] 0 ]').tolist(),"
            "encode('( ( ( [SM 1 ) 2 ) ] ) x [MED').tolist())"
        )
        seen = {
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env={"PYTHONHASHSEED": str(seed)},
                capture_output=True,
                check=True,
            ).stdout
            for seed in range(5)
        }
        assert seen == {b"[12, 3, 10, 11, 5, 8, 15, 1, 15] [14, 2, 3, 15, 16, 13]\n"}

    @pytest.mark.parametrize("text", ["", "1 2", "]", "[MIN ]", "[MIN 1 2", "[MIN 1 2 ] ]", "[MIN 1 2 ] 3", "x"])
    def test_what_is_no_expression_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="stand|closed|place"):
            evaluate(encode(text))

    @given(st.lists(st.integers(1, 15)))
    def test_decode_and_encode_undo_each_other(self, ids: list[int]) -> None:
        assert encode(decode(ids)).tolist() == ids

    @given(st.text(alphabet="()[]0123456789MINAXEDS \t\x0b\x80é", max_size=30))
    def test_the_quick_way_of_encoding_agrees_with_the_plain_one(self, text: str) -> None:
        plain = [listops_tokens.IDS.get(word, 16) for word in text.split() if word not in ("(", ")")]
        assert encode(text).tolist() == plain


class TestEvaluatorFaults:
    @pytest.mark.parametrize(
        ("operator", "rule"),
        [
            (listops_tokens.MED, lambda numbers: sorted(numbers)[len(numbers) // 2]),
            (listops_tokens.MED, lambda numbers: sorted(numbers)[(len(numbers) - 1) // 2]),
            (listops_tokens.MED, lambda numbers: int(np.median(numbers) + 0.5)),
            (listops_tokens.SM, lambda numbers: min(sum(numbers), 9)),
            (listops_tokens.SM, lambda numbers: sum(numbers) % 9),
        ],
    )
    def test_a_wrong_rule_is_caught(self, operator: int, rule, small: TaskData, monkeypatch) -> None:
        monkeypatch.setitem(listops_tokens.RULES, operator, rule)
        assert any(evaluate(encode(text)) != answer for text, answer, _ in WORKED)
        failed = [check.name for check in listops.verify(small, SMALL, **SMALL_WINDOW) if not check.ok]
        assert failed == ["labels"]


class TestGenerator:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 2**70), st.integers(1, 80), st.integers(0, 300))
    def test_agrees_with_the_evaluator(self, seed: int, shortest: int, width: int) -> None:
        block = next(listops_grammar.forests(seed, shortest, shortest + width))
        split = BlockSplit([block])
        assert sum(map(int, block.lengths[0])) == block.tokens[0].size
        for index in range(len(split)):
            example = split[index]
            assert shortest <= len(example.views[0]) <= shortest + width
            assert evaluate(example.views[0]) == example.label

    def test_shares_of_windows_of_all_draws(self) -> None:
        forests = 20
        share = {}
        for low, high in ((1, 1), (11, 49), (51, 199), (201, 499), (501, 1999), (2001, 3999)):
            words = listops_grammar.forests(3, low, high)
            kept = sum(next(words).labels.size for _ in range(forests))
            share[low] = 100 * kept / (forests * listops_grammar.FOREST)
        expected = {1: 74.8, 11: 4.0, 51: 1.8, 201: 3.8, 501: 8.3, 2001: 1.1}  # its windows are strict
        assert share == pytest.approx(expected, abs=0.35)

    def test_the_window_does_not_change_which_trees_are_short(self) -> None:
        """Giving up trees that are too long must not favour any of the others: compared with a window without bound."""
        low = [next(f).lengths[0] for f in [listops_grammar.forests(5, 4, 60)] * 30]
        free = [next(f).lengths[0] for f in [listops_grammar.forests(6, 4, 10**6)] * 30]
        low_lengths, all_lengths = np.concatenate(low), np.concatenate(free)
        assert stats.ks_2samp(low_lengths, all_lengths[all_lengths <= 60]).pvalue > CHANCE

    def test_classes_as_published(self, paper: TaskData) -> None:
        share = [17.0, 9.0, 7.7, 8.1, 9.1, 8.7, 8.0, 7.5, 8.2, 16.7]
        ours = np.bincount([example.label for example in examples(paper)], minlength=10)
        assert same_distribution(ours.tolist(), [200 * each for each in share]) > CHANCE

    def test_lengths_as_published(self, paper: TaskData) -> None:
        lengths = np.concatenate([split.lengths for split in paper.splits.values()])
        deciles = [579, 661, 753, 850, 961, 1081, 1230, 1409, 1649]
        ours = np.bincount(np.digitize(lengths, deciles), minlength=10)
        assert same_distribution(ours.tolist(), [2000] * 10) > CHANCE
        assert lengths.mean() == pytest.approx(1039, abs=10)
        assert (lengths.min(), lengths.max()) == (501, 1999)

    def test_arguments_of_the_root_as_published(self, paper: TaskData) -> None:
        share = [4.6, 6.2, 8.5, 10.3, 11.6, 13.3, 14.4, 15.0, 16.0]
        ours = np.bincount([root_arity(example.views[0]) for example in examples(paper)], minlength=11)[2:]
        assert ours.size == 9 and ours.min() > 0  # 2 and 10 occur, nothing beyond
        assert same_distribution(ours.tolist(), [200 * each for each in share]) > CHANCE

    def test_a_generator_that_misses_ten_arguments_is_caught(self, monkeypatch) -> None:
        monkeypatch.setattr(listops_grammar, "MOST", 9)
        words = listops_grammar.forests(0, 501, 1999)
        split = BlockSplit([next(words) for _ in range(10)])
        ours = np.bincount([root_arity(split[index].views[0]) for index in range(len(split))], minlength=11)[2:]
        assert same_distribution(ours.tolist(), [4.6, 6.2, 8.5, 10.3, 11.6, 13.3, 14.4, 15.0, 16.0]) < CHANCE

    def test_roots_tokens_and_depth(self, paper: TaskData) -> None:
        some = [example.views[0] for example in examples(paper)[:4000]]
        roots = np.bincount([ids[0] for ids in some], minlength=17)[11:15]
        assert stats.chisquare(roots).pvalue > CHANCE
        tokens = np.bincount(np.concatenate(some), minlength=17) / sum(map(len, some))
        assert tokens[1:11] == pytest.approx(np.full(10, 0.0715), abs=0.001)
        assert tokens[11:16] == pytest.approx([0.0355, 0.0355, 0.0355, 0.0355, 0.142], abs=0.001)
        assert tokens[[0, 16]].sum() == 0
        assert set(map(nesting, some)) <= {7, 8, 9} and nesting(some[0]) == 9

    @pytest.mark.parametrize("name", ["paper", "small"])
    def test_the_reference_draws_the_same_trees(self, name: str, drawn, request) -> None:
        ours = examples(request.getfixturevalue(name))
        lengths, values, arities, depths = zip(*drawn[name], strict=True)
        assert len(lengths) > 800
        ids = [example.views[0] for example in ours]
        assert stats.ks_2samp([len(each) for each in ids], lengths).pvalue > CHANCE
        for mine, theirs, top in (
            ([example.label for example in ours], values, 10),
            (list(map(root_arity, ids)), arities, 11),
            (list(map(nesting, ids)), depths, 10),
        ):
            rows = [np.bincount(each, minlength=top).tolist() for each in (mine, theirs)]
            assert same_distribution(*rows) > CHANCE

    def test_trees_are_all_different(self, paper: TaskData, small: TaskData) -> None:
        for data in (paper, small):
            texts = [example.views[0].tobytes() for example in examples(data)]
            assert len(set(texts)) == len(texts)

    def test_duplicates_are_drawn_and_left_out(self, cache: Path) -> None:
        tight = DataRequest("listops", 4, (200, 80, 80))  # of the 400 trees that there are
        data = listops.load(tight, cache, shortest=4, longest=4)
        assert len({example.views[0].tobytes() for example in examples(data)}) == 360
        assert Counter(int(example.views[0][0]) for example in examples(data)).keys() == {11, 12, 13, 14}

    def test_an_exhausted_window_is_an_error(self, cache: Path) -> None:
        with pytest.raises(SpecError, match="only 400 different"):
            listops.load(DataRequest("listops", 4, (300, 80, 80)), cache, shortest=4, longest=4)

    def test_single_digits_are_trees_of_one_token(self, cache: Path) -> None:
        data = listops.load(DataRequest("listops", 1, (8, 1, 1)), cache, shortest=1, longest=1)
        assert sorted(example.label for example in examples(data)) == list(range(10))
        assert all(example.views[0].tolist() == [example.label + 1] for example in examples(data))

    def test_a_seed_gives_the_pinned_trees(self, cache: Path) -> None:
        """Held in place for ever: whoever changes these digests changes GENERATOR too."""
        few = listops.load(DataRequest("listops", 64, (64, 16, 16)), cache, **SMALL_WINDOW)
        long = listops.load(DataRequest("listops", 2000, (20, 5, 5), seed=1), cache)
        assert (few.fingerprint, long.fingerprint) == (FEW, LONG)
        assert listops.describe(few.train[0]) == FIRST

    def test_seeds_differ(self, cache: Path) -> None:
        request = DataRequest("listops", 64, (64, 16, 16))
        prints = {listops.load(replace(request, seed=seed), cache, **SMALL_WINDOW).fingerprint for seed in range(3)}
        assert len(prints) == 3

    def test_two_fresh_folders_hold_the_same_bytes(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from lrbench.loaders import listops\n"
            "from lrbench.loaders.base import DataRequest\n"
            "listops.load(DataRequest('listops', 64, (300, 30, 30)), Path(sys.argv[1]), shortest=10, longest=60)"
        )
        contents = []
        for seed in ("1", "2"):
            folder = tmp_path / seed
            env = {"PYTHONHASHSEED": seed, "HOME": str(tmp_path)}
            subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, env=env, check=True)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            contents.append([(path.relative_to(folder), hashlib.sha256(path.read_bytes()).digest()) for path in files])
        assert contents[0] == contents[1]
        assert len(contents[0]) == 5  # three splits, the manifest, the lock


class TestLeakage:
    """Nothing but the expression tells the label: neither length nor place nor order."""

    def test_length_alone_says_nothing(self, paper: TaskData) -> None:
        gain = gain_of(paper.train.lengths, paper.train.labels, paper.test.lengths, paper.test.labels)
        assert gain < FOUR_SIGMA

    def test_place_alone_says_nothing(self, paper: TaskData) -> None:
        places = [np.linspace(0, 1, len(split)) for split in (paper.train, paper.test)]
        assert gain_of(places[0], paper.train.labels, places[1], paper.test.labels) < FOUR_SIGMA

    def test_a_planted_leak_is_caught(self, paper: TaskData) -> None:
        places = np.linspace(0, 1, len(paper.test))
        ordered = np.sort(paper.test.labels)
        assert gain_of(places, ordered, places, ordered) > 0.5

    @pytest.mark.parametrize("name", ["train", "validation", "test"])
    def test_the_order_of_labels_passes_a_runs_test(self, name: str, paper: TaskData) -> None:
        assert runs_test(paper.splits[name].labels) > CHANCE

    def test_sorted_labels_fail_the_runs_test(self, paper: TaskData) -> None:
        assert runs_test(np.sort(paper.test.labels)) < CHANCE


FOUR_SIGMA = 4 * (0.17 * 0.83 / 2000) ** 0.5  # of an accuracy near the majority rate


def gain_of(clue: np.ndarray, labels: np.ndarray, test_clue: np.ndarray, test_labels: np.ndarray) -> float:
    """How far the most frequent class of each tenth of a clue's range beats the majority class on test."""
    edges = np.quantile(clue, np.linspace(0.1, 0.9, 9))
    bins, test_bins = np.digitize(clue, edges), np.digitize(test_clue, edges)
    answers = np.array([np.bincount(labels[bins == each]).argmax() for each in range(10)])
    majority = np.bincount(labels).argmax()
    return float((answers[test_bins] == test_labels).mean() - (test_labels == majority).mean())


def runs_test(labels: np.ndarray) -> float:
    """Wald and Wolfowitz: the p-value of the number of runs of labels below and above 4.5."""
    high = labels > 4
    a, b = int(high.sum()), int((~high).sum())
    runs = 1 + int((high[1:] != high[:-1]).sum())
    mean = 1 + 2 * a * b / (a + b)
    deviation = np.sqrt((mean - 1) * (mean - 2) / (a + b - 1))
    return float(2 * stats.norm.sf(abs(runs - mean) / deviation))


class TestData:
    def test_baselines_as_published(self, paper: TaskData, small: TaskData) -> None:
        assert paper.baselines == pytest.approx({"majority": 0.170, "root operator": 0.363}, abs=0.03)
        assert small.baselines == pytest.approx({"majority": 0.156, "root operator": 0.332}, abs=0.04)

    def test_baselines_are_fitted_on_train_and_scored_on_test(self) -> None:
        train = split_of("[MIN 1 2 ]", "[MIN 1 3 ]", "[MAX 5 5 ]", "[MIN 3 3 ]")
        test = split_of("[MIN 3 4 ]", "[MAX 1 5 ]", "[MAX 5 1 ]", "[SM 0 1 ]", "[MAX 1 1 ]")
        scores = listops._baselines({"train": train, "test": test})
        assert scores == {"majority": 0.4, "root operator": 0.6}  # 1 is majority, 5 what MAX gives

    def test_a_limit_applies_to_every_split(self, cache: Path, small: TaskData) -> None:
        few = listops.load(replace(SMALL, limit=100), cache, **SMALL_WINDOW)
        tenth = listops.load(replace(SMALL, limit=0.1), cache, **SMALL_WINDOW)
        assert [len(split) for split in few.splits.values()] == [100, 100, 100]
        assert [len(split) for split in tenth.splits.values()] == [800, 100, 100]
        assert few.test[99].views[0].tolist() == small.test[99].views[0].tolist()
        assert few.baselines["majority"] == pytest.approx((small.test.labels[:100] == 0).mean(), abs=0.2)
        assert round(few.baselines["majority"] * 100, 6) == round(few.baselines["majority"] * 100)
        assert len({few.fingerprint, tenth.fingerprint, small.fingerprint}) == 3
        assert all(check.ok for check in listops.verify(few, replace(SMALL, limit=100), **SMALL_WINDOW))

    def test_a_limit_beyond_the_data_takes_all(self, cache: Path, small: TaskData) -> None:
        assert listops.load(replace(SMALL, limit=10**6), cache, **SMALL_WINDOW).fingerprint == small.fingerprint

    def test_verify_finds_nothing_wrong(self, cache: Path, paper: TaskData) -> None:
        some = replace(PAPER, limit=1000)
        checks = {check.name: check for check in listops.verify(listops.load(some, cache), some)}
        assert all(check.ok for check in checks.values())
        assert checks["cut"].found.startswith("0 cut samples")
        assert checks["labels"].found == "0 mismatches in 3000 labels"

    @pytest.mark.parametrize(
        ("change", "caught"),
        [
            ({"length": 50}, {"cut"}),
            ({"examples": (8001, 1000, 1000)}, {"examples"}),
        ],
    )
    def test_verify_finds_what_the_request_does_not_allow(self, change, caught: set[str], small: TaskData) -> None:
        checks = listops.verify(small, replace(SMALL, **change), **SMALL_WINDOW)
        assert {check.name for check in checks if not check.ok} == caught

    def test_verify_finds_planted_faults(self, small: TaskData) -> None:
        def failed(**changes) -> set[str]:
            return {c.name for c in listops.verify(replace(small, **changes), SMALL, **SMALL_WINDOW) if not c.ok}

        swapped = replace(small, validation=small.test, test=small.validation)
        assert failed(test=swapped.test, validation=swapped.validation) == {"fingerprint"}
        assert failed(validation=small.test) == {"fingerprint", "duplicates"}
        wrong = split_of(*["[MAX 1 2 [MIN 3 4 ] 5 6 7 ]"] * 1000, shift=1)
        assert failed(test=wrong) == {"fingerprint", "labels"}
        short = split_of(*["[MAX 1 2 ]"] * 1000)
        assert failed(test=short) == {"fingerprint", "window"}

    def test_describe_is_for_people(self) -> None:
        assert listops.describe(split_of("[MED 1 2 ]")[0]) == "[MED 1 2 ]\nanswer: 1"

    @pytest.mark.parametrize(
        ("shortest", "longest", "length"), [(0, 5, 10), (6, 5, 10), (5, 11, 10), (501, 1999, 1998)]
    )
    def test_a_window_that_does_not_fit_is_refused(
        self, shortest: int, longest: int, length: int, tmp_path: Path
    ) -> None:
        with pytest.raises(SpecError, match="no ListOps trees"):
            listops.load(DataRequest("listops", length, (1, 1, 1)), tmp_path, shortest=shortest, longest=longest)

    def test_an_empty_split_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="at least one"):
            listops.load(DataRequest("listops", 64, (10, 0, 10)), tmp_path, **SMALL_WINDOW)

    @pytest.mark.parametrize("source", ["hub", "stand-in"])
    def test_sources_that_there_are_not_are_refused(self, source: str, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=source):
            listops.load(replace(SMALL, source=source), tmp_path)


def split_of(*texts: str, shift: int = 0) -> BlockSplit:
    """A split of these expressions, labelled right, or wrong by `shift`."""
    ids = [encode(text) for text in texts]
    labels = np.array([(evaluate(each) + shift) % 10 for each in ids])
    return BlockSplit([Block((np.concatenate(ids),), (np.array([each.size for each in ids]),), labels)])


class TestFiles:
    """The layout of the Long Range Arena release."""

    @staticmethod
    def write(folder: Path, **changed: str) -> DataRequest:
        """Two rows a file, or what is given for it."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = {
            "train": "Source\tTarget\r\n( ( ( [MIN 1 ) 2 ) ] )\t1\r\n[MAX 1 2 ]\t2\r\n",
            "val": "Source\tTarget\r\n[SM 9 9 ]\t8\r\n[MED 1 2 ]\t1\r\n",
            "test": "Source\tTarget\r\n[SM 9 [MIN 2 3 ] ]\t1\r\n[MED 7 2 ]\t4\r\n",
        }
        for name, text in {**rows, **changed}.items():
            (folder / f"basic_{name}.tsv").write_text(text, newline="")
        return DataRequest("listops", 10, (1, 1, 1), source=str(folder))

    def test_files_are_read_whole(self, tmp_path: Path) -> None:
        request = self.write(tmp_path / "data")
        data = listops.load(request, tmp_path / "cache")
        assert (data.source, data.notes) == ("local", [])
        assert [len(split) for split in data.splits.values()] == [2, 2, 2]
        assert [listops.describe(example) for example in examples(data)][::5] == [
            "[MIN 1 2 ]\nanswer: 1",
            "[MED 7 2 ]\nanswer: 4",
        ]
        assert all(check.ok for check in listops.verify(data, request))

    def test_the_folder_or_its_parent(self, tmp_path: Path) -> None:
        inner = self.write(tmp_path / "listops-1000")
        prints = {
            listops.load(replace(inner, source=source), tmp_path / "cache").fingerprint
            for source in (inner.source, str(tmp_path))
        }
        assert len(prints) == 1

    def test_unix_line_ends_and_a_missing_last_one(self, tmp_path: Path) -> None:
        request = self.write(tmp_path / "data", train="Source\tTarget\n[MIN 1 2 ]\t1\n[MAX 1 2 ]\t2")
        assert len(listops.load(request, tmp_path / "cache").train) == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Target\tSource\r\n1\t[MIN 1 2 ]\r\n", ":1: the header"),
            ("1\t[MIN 1 2 ]\r\n", ":1: the header"),
            ("Source\tTarget\r\n[MIN 1 2 ]\t1\r\n[MIN 1 2 ]\t1\tx\r\n", ":3: 3 columns in place of 2"),
            ("Source\tTarget\r\n[MIN 1 2 ]\r\n", ":2: 1 columns in place of 2"),
            ("Source\tTarget\r\n[MIN 1 2 ]\t1.0\r\n", ":2: the target '1.0' is not a whole number"),
            ("Source\tTarget\r\n[MIN 1 2 ]\t-1\r\n", ":2: the target '-1' is not a whole number"),
            ("Source\tTarget\r\n[MIN 1 10 ]\t1\r\n", ":2: '10' is no ListOps token"),
            ("Source\tTarget\r\n[FIRST 1 2 ]\t1\r\n", r":2: '\[FIRST' is no ListOps token"),
            ("Source\tTarget\r\n[MIN 1 2 3 4 5 6 7 8 9 ]\t1\r\n", ":2: 11 tokens, but the task takes 10"),
            ("Source\tTarget\r\n[MIN 1 2\t1\r\n", ":2: not an expression: an operator is not closed"),
            ("Source\tTarget\r\n\t1\r\n", ":2: not an expression: 0 expressions"),
            ("Source\tTarget\r\n[MED 1 2 ]\t1\r\n[MED 1 2 ]\t2\r\n", ":3: the target is 2, but .* worth 1"),
            ("Source\tTarget\r\n", "holds no examples"),
            ("", "holds no examples"),
        ],
    )
    def test_faults_name_file_and_line(self, text: str, message: str, tmp_path: Path) -> None:
        request = self.write(tmp_path / "data", val=text)
        with pytest.raises(SpecError, match=rf"basic_val\.tsv.*{message}|basic_val\.tsv{message}") as caught:
            listops.load(request, tmp_path / "cache")
        assert "\n" not in caught.value.message
        assert not list((tmp_path / "cache").rglob("*.arrow"))

    def test_missing_files_name_the_folder(self, tmp_path: Path) -> None:
        with pytest.raises(Missing, match="nowhere") as caught:
            listops.load(DataRequest("listops", 10, (1, 1, 1), source=str(tmp_path / "nowhere")), tmp_path / "cache")
        assert caught.value.exit_code == 3
        request = self.write(tmp_path / "data")
        (tmp_path / "data" / "basic_test.tsv").unlink()
        with pytest.raises(Missing, match="basic_test.tsv is missing in .*data"):
            listops.load(request, tmp_path / "cache")

    def test_inputs_in_two_splits_are_noted(self, tmp_path: Path) -> None:
        request = self.write(tmp_path / "data", val="Source\tTarget\r\n[MIN 1 2 ]\t1\r\n[MAX 1 2 ]\t2\r\n")
        data = listops.load(request, tmp_path / "cache")
        assert data.notes == ["2 inputs are in both train and validation"]
        assert [check.name for check in listops.verify(data, request) if not check.ok] == ["duplicates"]

    def test_changed_files_are_read_again(self, tmp_path: Path) -> None:
        first = listops.load(self.write(tmp_path / "data"), tmp_path / "cache")
        request = self.write(tmp_path / "data", test="Source\tTarget\r\n[SM 1 1 ]\t2\r\n")
        second = listops.load(request, tmp_path / "cache")
        assert len(second.test) == 1 and first.fingerprint != second.fingerprint

    def test_a_shorter_task_does_not_use_what_was_read_for_a_longer_one(self, tmp_path: Path) -> None:
        request = self.write(tmp_path / "data")
        listops.load(request, tmp_path / "cache")
        with pytest.raises(SpecError, match="7 tokens, but the task takes 6"):
            listops.load(replace(request, length=6), tmp_path / "cache")

    @genuine
    def test_genuine_rows_of_the_arena(self, tmp_path: Path) -> None:
        request = DataRequest("listops", 2000, (96000, 2000, 2000), source=str(GENUINE))
        data = listops.load(request, tmp_path)
        assert [len(split) for split in data.splits.values()] == [400, 100, 100]
        assert all(check.ok for check in listops.verify(data, request))
        lengths = np.concatenate([split.lengths for split in data.splits.values()])
        assert lengths.min() >= 501 and lengths.max() <= 1999

    @genuine
    def test_genuine_rows_of_the_first_release(self) -> None:
        lines = (GENUINE / "spinn" / "test_d20s_sample.tsv").read_text().splitlines()
        for line in lines:
            label, text = line.split("\t")
            ids = encode(text)
            assert evaluate(ids) == int(label)
            assert reference.written(reference.parse(decode(ids).split())) == text
        assert len(lines) == 300
