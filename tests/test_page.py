"""The report: every number is the records', nothing executes, nothing is dropped silently."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Called
from recomputed import Tables, check
from report_helpers import comparison, written
from test_report import record
from test_scale_cli import Stub, stub, study

from lrbench.reporting.document import Document, document
from lrbench.reporting.page import page

__all__ = ["stub"]  # a fixture
Call = Callable[..., Called]
HOSTILE = """<script>alert(1)</script><b>bold</b>'"&\u6ce8\u610f{{7*7}}"""


def of(root: Path) -> Document:
    return document([root])


def caveats(found: Document) -> str:
    return " ".join(next(section.texts for section in found.sections if section.name == "caveats"))


def told(found: Document) -> dict[str, list[list[str]]]:
    return Tables(page(found)).found


class TestNumbers:
    @pytest.fixture
    def results(self, tmp_path: Path, call: Call, stub: Stub) -> Path:
        study(call, "--out", tmp_path / "r")
        return written(tmp_path / "r", [*comparison(), *comparison("text"), record("linear", 0, None)])

    def test_every_number_is_that_of_the_records(self, results: Path, call: Call) -> None:
        code, out, err = call("report", results, "--out", results / "report.html")
        assert (code, out.strip(), err) == (0, str(results / "report.html"), "")
        assert check(results, results / "report.html") > 60

    @pytest.mark.parametrize(
        "old, new", [(">50.2<", ">50.3<"), (">1,234<", ">1,235<"), (">47.5 to 53.0<", ">47.5 to 53.1<")]
    )
    def test_the_check_finds_a_number_that_was_changed(self, results: Path, call: Call, old: str, new: str) -> None:
        file = results / "report.html"
        call("report", results, "--out", file)
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(AssertionError, match="the page says"):
            check(results, file)

    def test_ties_with_the_best_are_marked_and_what_is_worse_is_not(self, results: Path) -> None:
        rows = {row[0]: row for row in told(of(results))["scores-listops-small"]}
        assert [rows[model][4] for model in ("full", "performer", "local")] == ["best", "≈ best", "worse"]

    def test_the_tidy_table_has_each_run_once(self, results: Path, call: Call) -> None:
        code, out, err = call("report", results, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        tests = [row for row in rows if row["kind"] == "run" and row["quantity"] == "test accuracy"]
        assert code == 0 and len(tests) == 25 and sum(row["value"] == "" for row in tests) == 1
        assert {row["quantity"] for row in rows if row["kind"] == "scale"} >= {"time_ms", "peak_bytes"}
        assert all(None not in row and None not in row.values() for row in rows), "ragged"

    def test_json_has_findings_comparisons_and_studies(self, results: Path, call: Call) -> None:
        _, out, _ = call("report", results, "--json")
        found = json.loads(out)
        assert len(found["findings"]) == 3 and len(found["comparisons"]) == 2 and len(found["studies"]) == 1
        assert found["comparisons"][0]["rows"][0]["run_ids"]

    def test_findings_are_made_from_the_numbers(self, results: Path) -> None:
        best, cheap, pays = (finding.answer for finding in of(results).findings)
        assert "Over 2 tasks (preset small), full has the highest mean accuracy, 50.2 %" in best
        assert "Not distinguishable from it: performer" in best
        assert "On listops" in cheap and "cheaper" in pays

    def test_failures_are_rows_with_their_reason(self, results: Path) -> None:
        assert ["linear", "–", "seed 0: error: it broke"] in [
            row[:3] for row in told(of(results))["scores-listops-small"]
        ]
        assert "Of 25 runs did not end well: 1 error" in caveats(of(results))

    def test_a_faster_one_that_cannot_be_told_from_the_best_is_named_with_both_scores(self, tmp_path: Path) -> None:
        fast = {**dict.fromkeys(record().speed.model_dump(), 300.0)}
        runs = [
            *comparison(),
            *(record("quick", seed, correct, speed=fast) for seed, correct in enumerate((40, 52, 47, 55))),
        ]
        found = of(written(tmp_path, runs)).findings[1].answer
        assert found == (
            "On listops, quick (48.5%) trains 3.0 times as fast as full (50.2%),"
            " and 4 seeds cannot tell their scores apart."
        )

    def test_every_row_says_how_to_repeat_it(self, results: Path) -> None:
        rows = told(of(results))["runs"]
        assert len(rows) == 26 and all(
            "lrbench run --suite" in row[-1] and "config.yaml" in row[-1] for row in rows[1:]
        )
        assert "--lengths 512,1024" in told(of(results))["studies"][1][-1]


class TestHostile:
    def test_names_are_text_and_nothing_executes(self, tmp_path: Path) -> None:
        bad = [record(HOSTILE, seed, 50 + seed, notes=[HOSTILE]) for seed in range(3)]
        bad += [record("full", seed, None, reason=HOSTILE) for seed in range(2)]
        text = page(of(written(tmp_path, bad)))
        assert "<script>alert" not in text and "{{7*7}}" in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "\u6ce8\u610f" in text

    def test_data_cannot_end_the_script_they_stand_in(self, tmp_path: Path) -> None:
        text = page(of(written(tmp_path, [record("</script><script>alert(2)", seed, 50) for seed in range(2)])))
        block = text.split('<script type="application/json" id="charts">')[1].split("</script>")[0]
        assert [chart["name"] for chart in json.loads(block)] and "alert(2)" in block

    @pytest.mark.parametrize(
        "content, reason",
        [
            ('{"schema": "lrbench.run/9"}', "its schema is"),
            ('{"schema": "lrbench.run/1", "run', "not valid JSON"),
            ("\xff\xfe", "not valid JSON"),
            ("[]", "valid dictionary"),
        ],
    )
    def test_what_cannot_be_read_is_named_in_the_page(self, tmp_path: Path, content: str, reason: str) -> None:
        written(tmp_path, comparison())
        (bad := tmp_path / "runs" / "listops" / "bad").mkdir()
        (bad / "record.json").write_text(content, encoding="latin-1")
        found = of(tmp_path)
        (row,) = told(found)["left-out"][1:]
        assert row[0] == str(bad / "record.json") and reason in row[1]
        assert "could not be read and are not counted: 1," in caveats(found)

    def test_a_record_whose_spec_lacks_the_task_is_left_out_with_the_reason(self, tmp_path: Path) -> None:
        whole = record()
        odd = whole.model_copy(update={"spec": {"attention": whole.spec["attention"]}, "run_id": "odd"})
        found = of(written(tmp_path, [*comparison(), odd]))
        assert len(found.material.runs) == 12 and "its spec lacks" in found.material.left_out[0][1]

    def test_records_without_measurements_are_gaps_and_not_zeros(self, tmp_path: Path) -> None:
        bare: dict[str, Any] = {"parameters": None, "speed": None, "memory": None, "data": None, "fairness": None}
        found = of(written(tmp_path, [record(seed=seed, correct=50, baselines=None, **bare) for seed in range(2)]))
        cost = told(found)["costs"][1]
        assert cost[5:8] == ["–", "–", "–"]
        assert told(found)["scores-listops-small"][2][6] == "–"

    def test_tiny_and_huge_numbers_survive(self, tmp_path: Path) -> None:
        small = record(correct=1)
        score = small.metrics.test.model_copy(update={"accuracy": 1e-300})
        small = small.model_copy(update={"metrics": small.metrics.model_copy(update={"test": score})})
        text = page(of(written(tmp_path, [small, small.model_copy(update={"seed": 1})])))
        assert 'data-value="1e-300"' in text and ">0.0<" in text

    def test_a_metric_that_is_absent_is_a_failure_and_no_number(self, tmp_path: Path) -> None:
        odd = record("local", 0).model_copy(
            update={"spec": record().spec | {"task": {"metric": {"name": "perplexity", "chance": 9.0}}}}
        )
        odd = odd.model_copy(update={"spec": odd.spec | {"attention": record("local").spec["attention"]}})
        rows = told(of(written(tmp_path, [odd])))["scores-listops-small"]
        assert ["local", "–", "seed 0: error: its record has no perplexity"] in [row[:3] for row in rows]

    def test_three_hundred_models_are_all_there(self, tmp_path: Path) -> None:
        found = of(
            written(tmp_path, [record(f"m{number}", seed, 40 + seed) for number in range(300) for seed in (0, 1)])
        )
        assert len(told(found)["costs"]) == 301
        looks = list(found.styles.values())
        assert len(looks) == 300 and len(set(looks[:252])) == 252
        text = page(found)
        assert all(f">m{number}<" in text for number in (0, 150, 299))


class TestHonesty:
    def test_presets_share_no_table_and_no_average(self, tmp_path: Path) -> None:
        found = of(written(tmp_path, [*comparison(), *comparison(preset="tiny"), *comparison("text")]))
        assert {table.name for table in found.tables} >= {
            "scores-listops-small",
            "scores-listops-tiny",
            "overview-small",
        }
        assert "share no table and no average" in caveats(found)
        assert "Over 2 tasks (preset small)" in found.findings[0].answer
        assert "On listops (preset tiny)" in found.findings[0].answer

    def test_where_a_task_was_done_in_two_ways_nothing_is_averaged(self, tmp_path: Path) -> None:
        found = of(written(tmp_path, [*comparison(), *comparison(steps=20), *comparison("text")]))
        assert "Over" not in found.findings[0].answer and "On text" in found.findings[0].answer
        assert "differ in data, sizes or recipe" in caveats(found)

    def test_costs_of_unlike_machines_are_not_averaged(self, tmp_path: Path) -> None:
        here, there = ({"cpu_model": name, "torch": "2"} for name in ("one", "two"))
        mixed = [record(seed=seed, environment=where) for seed, where in enumerate((here, here, there))]
        mixed += [record("local", seed, environment=here) for seed in range(3)]
        found = of(written(tmp_path, mixed))
        costs = {row[2]: row for row in told(found)["costs"]}
        assert costs["full"][4:8] == ["–", "–", "–", "–"] and costs["local"][4] == "5.0"
        assert "2 unlike machines" in caveats(found)
        assert "unlike machines" in found.findings[1].answer

    def test_one_seed_is_told_from_nothing(self, tmp_path: Path) -> None:
        found = of(written(tmp_path, [record("full", 0, 60), record("local", 0, 40)]))
        rows = {row[0]: row for row in told(found)["scores-listops-small"]}
        assert rows["local"][4] == "not told" and rows["local"][3].endswith("*")
        assert "too few seeds" in found.findings[0].answer and "2 of 2 scores are of a single seed" in caveats(found)

    def test_free_for_all_stands_apart_with_the_reason(self, tmp_path: Path) -> None:
        free = {"track": "free-for-all", "reasons": ["2,000 parameters, 62% more"]}
        runs = [*comparison(), *(record("big", seed, 90, fairness=free) for seed in range(4))]
        found = of(written(tmp_path, runs))
        (table,) = [table for table in found.tables if table.name == "scores-listops-small"]
        assert [row[0].text for row in table.bodies[1].rows] == ["big"]
        assert any("big is free-for-all: 2,000 parameters" in note for note in table.notes)
        assert "full" in found.findings[0].answer and "big" not in found.findings[0].answer

    @pytest.mark.parametrize("preset, difference", [("paper", "+13.6"), ("small", "not comparable")])
    def test_a_published_figure_stands_beside_with_a_difference_only_where_it_compares(
        self, tmp_path: Path, preset: str, difference: str
    ) -> None:
        (table,) = [table for table in self.paper(tmp_path, preset).tables if table.name == f"scores-listops-{preset}"]
        assert [cell.text for cell in table.bodies[0].rows[0][-2:]] == ["36.4", difference]

    def test_of_several_published_figures_the_comparable_one_stands_beside(self, tmp_path: Path) -> None:
        """Of text, the first file has a copy of another paper's figure, which is not comparable."""
        found = self.paper(tmp_path, "paper", task="text")
        (table,) = [table for table in found.tables if table.name == "scores-text-paper"]
        assert [cell.text for cell in table.bodies[0].rows[0][-2:]] == ["64.3", "−14.3"]

    @pytest.mark.parametrize("preset, said", [("paper", "yes"), ("small", "no: published figures are of preset paper")])
    def test_a_results_folder_may_bring_figures_of_its_own(self, tmp_path: Path, preset: str, said: str) -> None:
        (tmp_path / "published").mkdir()
        head = "source,model,backend,task,metric,value,comparable,remark"
        lines = [head, "A paper,Other,,listops,accuracy,41.0,yes,", "A paper,Odd,,listops,accuracy,much,yes,"]
        (tmp_path / "published" / "own.csv").write_text("\n".join(lines))
        found = self.paper(tmp_path, preset)
        (papers,) = [table for table in found.tables if table.name == f"published-listops-{preset}"]
        (other,) = [row for row in papers.bodies[0].rows if row[0].text == "Other"]
        assert (other[1].text, other[3].text) == ("41.0", said)
        ((place, why),) = found.material.left_out
        assert place.endswith("own.csv:3") and why.startswith("value: ")

    @staticmethod
    def paper(root: Path, preset: str, task: str = "listops") -> Document:
        """Full attention, which scored 50 %."""
        runs = [
            record(seed=seed, correct=50, preset=preset, task={"name": task, "card_version": 1}) for seed in range(3)
        ]
        return of(written(root, runs))

    def test_what_has_no_track_is_not_called_unfair(self, tmp_path: Path) -> None:
        runs = [*comparison(), *(record("old", seed, 60, fairness=None) for seed in range(3))]
        (table,) = [t for t in of(written(tmp_path, runs)).tables if t.name == "scores-listops-small"]
        assert [body.title for body in table.titled][:2] == ["apples-to-apples", "track not recorded"]
        assert [row[0].text for row in table.bodies[1].rows] == ["old"]

    def test_one_file_in_two_versions_is_two_models(self, tmp_path: Path) -> None:
        runs = []
        for number, digest in enumerate(("a" * 64, "b" * 64)):
            for seed in range(2):
                run = record("Mine", seed, 50 + 10 * number, run_id=f"{digest[0]}{seed}")
                attention = run.spec["attention"] | {"source": "mine.py", "digest": digest}
                runs.append(run.model_copy(update={"spec": run.spec | {"attention": attention}}))
        (table,) = of(written(tmp_path, runs)).comparisons
        assert {row.model: row.mean for row in table.rows} == {
            "Mine (lrbench bbbbbbbb)": 0.6,
            "Mine (lrbench aaaaaaaa)": 0.5,
        }

    def test_averages_are_tested_with_correction(self, tmp_path: Path) -> None:
        """A gap that one comparison would call a difference is none among twelve."""
        near = [
            record(f"m{number:02}", seed, correct, task={"name": task, "card_version": 1})
            for task in ("listops", "text")
            for number in range(12)
            for seed, correct in enumerate((48, 49, 46, 50))
        ]
        runs = [*comparison(), *comparison("text"), *near]
        found = [run for run in runs if not run.model.name.startswith("m") or run.model.name == "m00"]
        one, many = (
            of(written(tmp_path / name, some)).findings[0].answer for name, some in (("one", found), ("many", runs))
        )
        assert "m00" not in one.split("Not distinguishable")[1] and "m00" in many.split("Not distinguishable")[1]

    def test_of_a_rerun_the_later_counts_and_copies_count_once(self, tmp_path: Path) -> None:
        late = {"started_at": "2026-02-01T00:00:00", "finished_at": "2026-02-01T00:00:00", "train_s": 5.0}
        written(tmp_path / "a", [record(run_id="first", correct=40), record(seed=1)])
        written(tmp_path / "b", [record(run_id="second", correct=60, time=late), record(seed=1)])
        found = document([tmp_path / "a", tmp_path / "b"])
        (table,) = found.comparisons
        assert table.rows[0].scores == {0: 0.6, 1: 0.5}
        assert any("second counts, first is older" in note for note in table.notes)
        assert "not counted again: 1." in caveats(found)


class TestFormats:
    def test_latex_compiles_in_the_mind(self, tmp_path: Path, call: Call) -> None:
        """Braces balance, every begin has its end, and no special sign is bare."""
        _, out, _ = call("report", written(tmp_path, [*comparison(), record("a_b%$#&{x}^~\\", 0)]), "--format", "latex")
        body = "\n".join(line for line in out.splitlines() if not line.startswith("%"))
        plain = re.sub(r"\\[%$#&_{}\\]", "", body)
        assert plain.count("{") == plain.count("}") and "#" not in plain
        begun, ended = (sorted(re.findall(rf"\\{word}\{{(\w+)\}}", body)) for word in ("begin", "end"))
        assert begun == ended and begun.count("tabular") == 2
        for row in re.findall(r"(?m)^(.*) \\\\$", body):
            if "multicolumn" not in row:
                assert re.sub(r"\\&", "", row).count("&") in range(1, 12)
        assert r"a\_b\%\$\#\&\{x\}\textasciicircum{}\textasciitilde{}\textbackslash{}" in body

    def test_markdown_rows_have_as_many_cells_as_the_head(self, tmp_path: Path, call: Call) -> None:
        _, out, _ = call("report", written(tmp_path, [*comparison(), record("a|b", 0)]), "--format", "md")
        widths: list[int] = []
        for line in out.splitlines():
            if not line.startswith("|"):
                widths = []
                continue
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
            assert len(set(widths)) == 1, line
        assert r"a\|b" in out and "<script" not in out

    def test_several_formats_are_written_at_once(self, tmp_path: Path, call: Call) -> None:
        root = written(tmp_path / "r", comparison())
        code, out, err = call("report", root, "--format", "html,md,csv,latex,json", "--out", tmp_path / "x" / "rep")
        names = [f"rep{ending}" for ending in (".html", ".md", ".csv", ".tex", ".json")]
        assert code == 0 and [Path(line).name for line in out.split()] == names
        assert all((tmp_path / "x" / name).stat().st_size > 100 for name in names)

    def test_figures_are_vectors_with_real_text(self, tmp_path: Path, call: Call, stub: Stub) -> None:
        study(call, "--out", tmp_path / "r")
        root = written(tmp_path / "r", [*comparison(), *(record("$x_1$", seed) for seed in range(2))])
        code, out, err = call("report", root, "--figures", tmp_path / "fig", "--out", tmp_path / "r.md")
        names = {path.name for path in (tmp_path / "fig").iterdir()}
        assert code == 0, err
        assert {"trade-off-listops-small.svg", "curve-listops-small.pdf"} <= names
        assert any(name.startswith("scale-") and name.endswith("-time.png") for name in names)
        drawn = (tmp_path / "fig" / "curve-listops-small.svg").read_text()
        assert ">performer</text>" in drawn and "$x_1$" in drawn and 'width="241' in drawn
        again = tmp_path / "again"
        call("report", root, "--figures", again, "--out", tmp_path / "r.md")
        assert (again / "curve-listops-small.svg").read_text() == drawn

    def test_a_thousand_records_make_a_page_below_six_megabytes_without_torch(self, tmp_path: Path) -> None:
        runs = [
            record(f"m{n % 20}", n // 20 % 5, 40 + n % 20, task={"name": f"t{n // 100}", "card_version": 1})
            for n in range(1000)
        ]
        written(tmp_path, runs)
        code = (
            "import sys; from pathlib import Path; from lrbench.reporting.document import document;"
            "from lrbench.reporting.page import page; text = page(document([Path(sys.argv[1])]));"
            "print(len(text.encode()), 'torch' in sys.modules)"
        )
        out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        size, torch = out.stdout.split()
        assert int(size) < 6e6 and torch == "False"

    def test_it_asks_nothing_of_a_network(self, tmp_path: Path) -> None:
        text = page(of(written(tmp_path, comparison())))
        own = re.sub(r"(?s)<script>.*?</script>", "", text)
        assert not re.findall(r"""(?:src|href)=(?!["']?#)""", own) and "@import" not in own and "url(" not in own

    def test_a_notebook_shows_it_in_a_frame(self, tmp_path: Path) -> None:
        import lrbench

        shown = lrbench.report(written(tmp_path, comparison()))._repr_html_()
        assert shown.startswith("<iframe") and "&lt;!doctype html&gt;" in shown and "<h1>" not in shown


class TestCommand:
    def test_an_empty_folder_is_one_line_and_exit_1(self, tmp_path: Path, call: Call) -> None:
        code, out, err = call("report", tmp_path, "--out", tmp_path / "r.html")
        assert code == 1 and out == "" and err.splitlines()[0] == f"error: no records in {tmp_path}"
        assert not (tmp_path / "r.html").exists()

    @pytest.mark.parametrize(
        "arguments, said",
        [
            (["--format", "pdf"], "unknown format 'pdf'"),
            (["--out", "r.docx"], "no format is known by .docx"),
            (["--format", "md,csv"], "several formats need files"),
            (["--where", "task"], "no condition"),
            (["--where", "tsk=1"], "unknown field 'tsk'"),
            (["--where", "seed<x"], "could not convert"),
            (["--where", "model~["], "unterminated"),
            (["--json", "--format", "md"], "--json and --format md exclude one another"),
        ],
    )
    def test_a_wrong_request_is_exit_2(self, tmp_path: Path, call: Call, arguments: list[str], said: str) -> None:
        code, out, err = call("report", written(tmp_path, comparison()), *arguments)
        assert code == 2 and out == "" and said in err.splitlines()[0] and len(err.splitlines()) == 2

    def test_a_folder_that_is_not_there_is_exit_2(self, tmp_path: Path, call: Call) -> None:
        assert call("report", tmp_path / "nowhere")[0] == 2

    @pytest.mark.parametrize("flag", ["--out", "--figures"])
    def test_an_unwritable_place_is_found_before_work(
        self, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, flag: str
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setattr("lrbench.reporting.document.document", lambda *_: pytest.fail("worked first"))
        code, _, err = call("report", written(tmp_path / "r", comparison()), flag, tmp_path / "file" / "r.html")
        assert code == 2 and err.startswith(f"error: {flag} ")

    def test_where_picks_runs_and_the_page_says_so(self, tmp_path: Path, call: Call) -> None:
        root = written(tmp_path, [*comparison(), *comparison("text")])
        code, out, _ = call("report", root, "--where", "task=text model!~per seed<2", "--format", "md")
        assert code == 0 and "4 of 24 runs meet the condition" in out and "listops" not in out.split("meet")[0]
        code, out, _ = call("list", "runs", root, "--where", "accuracy>=0.51 model=full", "--json")
        assert [row["run_id"] for row in json.loads(out)["runs"]] == ["full-1", "full-3"] * 2
        assert call("list", "runs", root, "--where", "seed>9")[1].split() == ["runs", "none"]

    def test_a_terminal_shows_tables(self, tmp_path: Path, call: Call) -> None:
        code, out, _ = call("report", written(tmp_path, comparison()))
        assert code == 0 and "performer" in out and "95 % interval" in out

    def test_names_in_any_script_in_any_locale(self, tmp_path: Path) -> None:
        root = written(tmp_path / "r", [record("Nystr\u00f6mformer-\u03b2\u6ce8", seed) for seed in range(2)])
        environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PATH": "/usr/bin:/bin"}
        for form in ("html", "md", "csv", "latex"):
            out = subprocess.run(
                [sys.executable, "-m", "lrbench", "report", str(root), "--format", form, "--out", str(tmp_path / form)],
                env=environment,
                capture_output=True,
                check=False,
            )
            assert out.returncode == 0, out.stderr
            assert "Nystr\u00f6mformer" in (tmp_path / form).read_text(encoding="utf-8")
