"""Result files of other tools: chosen by content, nothing believed silently.  Fixtures: tests/data/imports/NOTICE."""

import json
import math
import shutil
import tarfile
from pathlib import Path

import pytest

from analysis import results as loading
from analysis import verdicts, why
from analysis.importers import IMPORTERS
from analysis.results import InputError, load

DATA = Path(__file__).parents[2] / "data" / "imports"


def unpacked(name: str, tmp_path: Path) -> Path:
    with tarfile.open(DATA / name) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture(scope="module")
def laguna(tmp_path_factory):
    return load(unpacked("laguna_dflash_sweep.tar.gz", tmp_path_factory.mktemp("laguna")))


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("sglang_0.5.17/ar_c1.jsonl", "sglang.bench_serving"),
        ("sglang_old_made_up.jsonl", "sglang.bench_serving"),
        ("sglang_new_made_up.jsonl", "sglang.bench_serving"),
        ("specforge/dev_result.jsonl", "bench_speculative"),
        ("specforge/llama31_8b_eagle3_reference.csv", "bench_speculative"),
        ("vllm_made_up/plain.json", "vllm bench serve"),
        ("aiperf_made_up/good/profile_export_aiperf.json", "AIPerf"),
        ("guidellm/report_v2.json", "GuideLLM"),
        ("inferencex/glm5_fp8_vllm_tp8_isl1024_osl128_conc8.json", "InferenceX"),
        ("llama_benchy/sample.json", "llama-benchy"),
    ],
)
def test_a_file_is_known_by_its_content_whatever_its_name(path, tool, tmp_path):
    for name in ("renamed.txt", "x"):
        copy = tmp_path / name
        shutil.copyfile(DATA / path, copy)
        cells = load(copy).cells
        assert set(cells["source"]) == {tool}
        assert set(cells["origin"]) == {"imported"}
        assert cells["status"].eq("ok").all() and cells["system_tok_s"].gt(0).all()


def test_one_importer_only_matches_each_row():
    for path in sorted(DATA.rglob("*.json*")):
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            row = json.loads(line)
            assert len([importer.TOOL for importer in IMPORTERS if importer.matches(row)]) == 1, path


def test_sglang_with_server_info_knows_what_it_measured():
    data = load(DATA / "sglang_0.5.17")
    plain = data.cells[data.cells["method"].eq("none")].set_index("concurrency")
    ngram = data.cells[data.cells["method"].eq("ngram")].set_index("concurrency")
    assert plain.loc[8, "system_tok_s"] == pytest.approx(3862.66, rel=1e-4)
    assert bool(plain.loc[8, "baseline"]) and plain.loc[8, "engine_version"] == "0.5.17"
    # In SGLang's own count the root of the tree is one of the draft tokens.
    assert tuple(ngram.loc[8, ["budget", "topk", "verify_width", "candidates"]]) == (8, 4, 8, 7)
    assert ngram.loc[8, "al_scope"] == "server_lifetime"
    assert "since its last flush" in ngram.loc[8, "remarks"]
    assert math.isnan(ngram.loc[8, "tpot_ms_p99"]), "32 requests have no p99"
    # The identity of step time holds on this tool's own numbers.
    row = ngram.loc[8]
    assert row["running_mean"] * row["al"] / row["step_time_ms"] * 1000 == pytest.approx(row["system_tok_s"])


def test_sglang_details_become_requests():
    data = load(DATA / "sglang_0.5.17" / "ngram_b8_k4_c8.jsonl")
    requests = data.requests
    assert len(requests) == 32 and requests["ok"].all()
    assert requests["ttft_ms"].median() == pytest.approx(data.cells["ttft_ms_median"].iloc[0], rel=1e-3)
    assert requests["tpot_ms"].median() == pytest.approx(data.cells["tpot_ms_median"].iloc[0], rel=1e-3)


def test_speculation_that_does_not_pay_comes_out_in_words():
    data = load(DATA / "sglang_0.5.17")
    lines = " ".join(why.headlines(data))
    assert "acceptance up, throughput down" in lines
    assert "not of the cell alone (server_lifetime)" in lines
    assert "one restart: no verdict" in lines


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("half", "invalid", "2 of 4 requests failed"),
        ("abort", "invalid", "4 requests came back as successes without output"),
        ("errchunk", "invalid", "4 requests came back as successes without output"),
    ],
)
def test_sglang_failures_that_look_like_successes(name, status, words):
    row = load(DATA / f"sglang_stand_in_{name}.jsonl").cells.iloc[0]
    assert (row["status"], row["reason"]) == (status, words)


def test_old_sglang_rows_say_that_they_do_not_know():
    row = load(DATA / "sglang_old_made_up.jsonl").cells.iloc[0]
    assert row["method"] == "unknown" and row["engine_version"] is None
    assert "does not say which server" in row["remarks"]
    assert "failed requests cannot be told from requests never sent" in row["remarks"]
    assert row["concurrency"] == 4 and "open loop at 4 requests/s" in row["remarks"]
    assert math.isnan(row["al"])


def test_new_sglang_acceptance_is_of_the_run():
    row = load(DATA / "sglang_new_made_up.jsonl").cells.iloc[0]
    assert (row["al"], row["al_request_weighted"], row["al_scope"]) == (2.5, 3.0, "cell")


def test_several_rows_a_file_infinity_and_one_broken_row(tmp_path):
    row = (DATA / "sglang_0.5.17" / "ar_c1.jsonl").read_text()
    assert "Infinity" in row
    path = tmp_path / "many.jsonl"
    path.write_text(row + '{"output_throughput": 12.0, "broken\n' + row + '{"some": "other row"}\n' + "[1, 2]\n")
    data = load(path)
    assert len(data.cells) == 2
    assert [line.split(": ")[0].removeprefix(f"{path}:") for line in data.problems] == ["2", "5", "4"]
    # The same random seed: the same launch of the server, so one restart.
    assert set(data.cells["repeat"]) == {1}
    assert data.cells["remarks"].str.contains("one of 2 rows of one server").all()


def test_rows_of_different_launches_are_different_restarts(tmp_path):
    row = json.loads((DATA / "sglang_0.5.17" / "ar_c1.jsonl").read_text())
    again = {**row, "server_info": {**row["server_info"], "random_seed": 7}}
    path = tmp_path / "two.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(again) + "\n")
    assert sorted(load(path).cells["repeat"]) == [1, 2]


def test_a_row_with_a_broken_field_is_named_and_the_rest_is_used(tmp_path):
    row = json.loads((DATA / "sglang_0.5.17" / "ar_c1.jsonl").read_text())
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**row, "completed": "many"}) + "\n" + json.dumps(row) + "\n")
    data = load(path)
    assert len(data.cells) == 1
    assert data.problems == [
        f"{path}:1: broken sglang.bench_serving row, skipped: expected a number in completed, got 'many'"
    ]


def test_specforge_rows_are_restarts_and_tell_the_story():
    """Three launches of each configuration: acceptance 2.56 -> 4.42, throughput 1805 -> 1409."""
    data = load(DATA / "specforge" / "dev_result.jsonl")
    assert data.cells.groupby("label")["repeat"].max().to_dict() == {"(3,1,4)": 3, "(7,10,60)": 3}
    row = verdicts.verdicts(data).set_index("label").loc["(7,10,60)"]
    assert row["verdict"] == "worse" and row["ratio"] == pytest.approx(0.781, abs=0.002)
    factors = why.decomposition(data).set_index("label").loc["(7,10,60)"]
    assert factors["direction"] == "acceptance up, throughput down"
    assert factors["al_ratio"] == pytest.approx(4.42 / 2.56, rel=0.01)
    assert any("acceptance up, throughput down" in line for line in why.headlines(data))


def test_a_wider_tree_that_loses_both_is_said():
    """(7,1,8) -> (7,4,8) of the fork's table: 3.91 -> 2.91, 454.7 -> 305.2."""
    data = load(DATA / "specforge" / "llama31_8b_eagle3_reference.csv")
    row = why.decomposition(data).set_index("label").loc["(7,4,8)"]
    assert row["reference"] == "(7,1,8)"
    assert row["direction"] == "both down"
    assert any("both down" in line for line in why.headlines(data))


def test_rows_of_a_server_launched_elsewhere_are_compared_with_nothing(tmp_path):
    rows = [
        {"batch_size": 1, "steps": None, "topk": None, "num_draft_tokens": None, "acc_length": 2.0, "speed": speed}
        for speed in (100.0, 200.0)
    ]
    path = tmp_path / "elsewhere.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    data = load(path)
    assert set(data.cells["method"]) == {"unknown"} and set(data.cells["repeat"]) == {1}
    assert set(verdicts.verdicts(data)["verdict"]) == {"no baseline"}


def test_vllm_zeros_are_a_failure_and_never_a_zero():
    row = load(DATA / "vllm_made_up" / "all_failed.json").cells.iloc[0]
    assert (row["status"], row["failure_class"]) == ("failed", "bench.all_requests_failed")
    assert "no request completed of 128" in row["reason"]
    for column in ("system_tok_s", "per_user_tok_s", "ttft_ms_median", "tpot_ms_median", "output_tokens_total"):
        assert math.isnan(row[column])


def test_vllm_speculation_counters():
    data = load(DATA / "vllm_made_up")
    row = data.cells.set_index("label").loc["speculative b4"]
    assert (row["budget"], row["verify_width"], row["drafts"]) == (4, 5, 4096)
    # 16384 tokens, 8192 of them accepted drafts: 8192 steps.  vLLM's own 3.0 skips the steps without a draft.
    assert row["al"] == pytest.approx(2.0) and row["length_of_drafted_steps"] == 3.0
    assert row["tpot_ms_p99"] == 10.5, "128 requests have a p99"
    assert list(data.positions["rate"].round(2)) == [0.8, 0.6, 0.4, 0.2]
    plain = data.cells[data.cells["method"].eq("none") & data.cells["status"].eq("ok")].iloc[0]
    assert "taken as a server without it" in plain["remarks"]


def test_vllm_length_without_counts_is_not_called_al(tmp_path):
    row = json.loads((DATA / "vllm_made_up" / "speculative.json").read_text())
    for name in ("spec_decode_accepted_tokens", "spec_decode_draft_tokens", "spec_decode_num_drafts"):
        del row[name]
    path = tmp_path / "short.json"
    path.write_text(json.dumps(row))
    found = load(path).cells.iloc[0]
    assert math.isnan(found["al"]) and found["length_of_drafted_steps"] == 3.0
    assert "skips steps without a draft" in found["remarks"]


def test_vllm_bench_sweep_folders(tmp_path):
    data = load(unpacked("vllm_bench_sweep.tar.gz", tmp_path) / "vllm_bench_sweep")
    cells = data.cells
    assert set(cells["status"]) == {"failed"}, "completed 0 in every run"
    assert cells["system_tok_s"].isna().all(), "and the 100.0 tok/s beside it is no measurement"
    by_sweep = {name.split("/")[-1]: group for name, group in cells.groupby("sweep_id")}
    assert "Server process crashed with return code 7" in by_sweep["b2"]["reason"].iloc[0]
    assert len(by_sweep["c"]) == 3
    assert by_sweep["c"]["reason"].str.contains("Cannot find results").sum() == 1
    assert sorted(set(by_sweep["e"]["label"])) == ["ngram b4", "ngram b8", "none"]
    assert sorted(set(by_sweep["e"]["concurrency"])) == [1, 8]
    assert by_sweep["e"].set_index("label").loc["ngram b8", "verify_width"].eq(9).all()


def test_a_sweep_folder_without_a_run_cannot_tell(tmp_path):
    (tmp_path / "SERVE--max_num_seqs=64-BENCH--max_concurrency=16").mkdir()
    row = load(tmp_path).cells.iloc[0]
    assert (row["status"], row["concurrency"], row["max_running"]) == ("failed", 16, 64)
    assert "failed or never ran" in row["reason"]


def test_vllm_sweep_runs_with_numbers_are_one_restart(tmp_path):
    good = json.loads((DATA / "vllm_made_up" / "plain.json").read_text())
    folder = tmp_path / "BENCH--c8"
    folder.mkdir()
    for number in range(3):
        (folder / f"run={number}.json").write_text(json.dumps({**good, "output_throughput": 800.0 + number}))
    row = verdicts.verdicts(load(tmp_path)).iloc[0]
    assert (row["n"], row["value"]) == (1, 801.0)


def test_inferencex_seconds_become_milliseconds():
    row = load(DATA / "inferencex" / "glm5_fp8_vllm_tp8_isl1024_osl128_conc8.json").cells.iloc[0]
    assert row["ttft_ms_median"] == pytest.approx(263.144, rel=1e-4)
    assert row["tpot_ms_median"] == pytest.approx(24.733, rel=1e-4)
    assert row["per_user_tok_s"] == pytest.approx(40.43, rel=1e-3)
    assert "converted from seconds" in row["remarks"]
    assert math.isnan(row["tpot_ms_p99"]), "80 requests have no p99"
    # Sanity of the unit: eight users at their own speed are about the system's.
    assert 0.7 < row["system_tok_s"] / (8 * row["per_user_tok_s"]) < 1.0


def test_guidellm_takes_the_successful_population():
    data = load(DATA / "guidellm" / "report_v2.json")
    row = data.cells.iloc[0]
    assert row["requests_completed"] == 2
    # 16 tokens in 5.0196 s; GuideLLM's own mean of rates is 6.4, twice that.
    assert row["system_tok_s"] == pytest.approx(16 / 5.01964807510376)
    assert "throughput computed here" in row["remarks"]
    assert len(set(data.cells["prompts"])) == 2, "two request rates are two load points"


def test_guidellm_leaves_errored_requests_out(tmp_path):
    report = json.loads((DATA / "guidellm" / "report_v2.json").read_text())
    metrics = report["benchmarks"][0]["metrics"]
    metrics["request_totals"] = {"successful": 2, "errored": 1, "incomplete": 1, "total": 4}
    metrics["output_token_count"]["total"]["total_sum"] = 1000.0
    metrics["inter_token_latency_ms"]["total"]["median"] = 77.0
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    row = load(path).cells.set_index("prompts").loc["not recorded, constant 2.0"]
    assert (row["status"], row["reason"]) == ("invalid", "1 of 3 requests failed")
    assert row["output_tokens_total"] == 16
    assert row["tpot_ms_median"] < 10
    assert "1 requests were cut off at the end and are left out" in row["remarks"]


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("sglang_0.5.17/ar_c1.jsonl", {"completed": 0, "output_throughput": 0.0}),
        ("inferencex/glm5_fp8_vllm_tp8_isl1024_osl128_conc8.json", {"completed": 0, "output_throughput": 0.0}),
        ("aiperf_made_up/good/profile_export_aiperf.json", {"request_count": {"unit": "requests", "avg": 0.0}}),
        ("vllm_made_up/plain.json", {"completed": 0}),
    ],
)
def test_nothing_completed_is_a_failure_in_every_format(path, changes, tmp_path):
    row = json.loads((DATA / path).read_text())
    copy = tmp_path / "run.json"
    copy.write_text(json.dumps({**row, **changes}))
    cell = load(copy).cells.iloc[0]
    assert (cell["status"], cell["failure_class"]) == ("failed", "bench.all_requests_failed")
    assert math.isnan(cell["system_tok_s"])


def test_aiperf_counts_errors():
    good = load(DATA / "aiperf_made_up" / "good" / "profile_export_aiperf.json").cells.iloc[0]
    assert (good["status"], good["concurrency"], good["system_tok_s"]) == ("ok", 4, 384.0)
    assert (good["tpot_ms_median"], good["ttft_ms_p99"]) == (10.0, 90.0)
    bad = load(DATA / "aiperf_made_up" / "errors" / "profile_export_aiperf.json").cells.iloc[0]
    assert (bad["status"], bad["reason"]) == ("invalid", "10 of 120 requests failed")


def test_aiperf_with_an_unknown_unit_is_refused(tmp_path):
    row = json.loads((DATA / "aiperf_made_up" / "good" / "profile_export_aiperf.json").read_text())
    row["inter_token_latency"]["unit"] = "fortnights"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(row))
    with pytest.raises(InputError, match="got unit 'fortnights'"):
        load(path)


def test_llama_benchy_repeats_are_one_restart():
    data = load(DATA / "llama_benchy" / "sample.json")
    assert list(data.cells["concurrency"]) == [1, 2]
    assert data.cells["system_tok_s"].iloc[1] == pytest.approx(98.70, rel=1e-3)
    assert verdicts.verdicts(data)["n"].max() == 1
    assert "the time of the prompts is outside" in data.cells["remarks"].iloc[0]


def test_laguna_reads_both_shapes_of_rows(laguna):
    cells = laguna.cells
    assert len(cells) == 40 and cells["status"].eq("ok").all()
    one = cells[cells["concurrency"].eq(1) & cells["budget"].eq(5) & cells["max_running"].eq(4)].iloc[0]
    # The file's own medians: 23.87 overall, code 37.59; 54.48 for four at once.
    assert one["per_user_tok_s"] == pytest.approx(23.865)
    four = cells[cells["concurrency"].eq(4) & cells["budget"].eq(5) & cells["max_running"].eq(4)].iloc[0]
    assert four["system_tok_s"] == pytest.approx(54.48)
    code = laguna.categories[
        (laguna.categories["cell_id"] == one["cell_id"]) & (laguna.categories["category"] == "code")
    ]
    assert code["per_user_tok_s"].iloc[0] == pytest.approx(37.59, abs=0.01)


def test_laguna_categories_show_what_the_pooled_medians_hide(laguna):
    """Concurrency 1, category code: 5 < 6 < 7 and the collapse at 8 at all four max-num-seqs levels."""
    orders = why.category_orders(laguna)
    one = orders[orders["concurrency"].eq(1)].set_index("category")
    code = one.loc["code"]
    assert code["chain"].startswith("5 < 6 < 7 > 8")
    assert (code["levels"], code["orders"], code["consistent"]) == (4, 1, True)
    assert (code["drop_budget"], round(code["drop"], 2)) == (8, -0.28)
    # json nearly so: only 5 and 6 change places at one level.
    assert one.loc["json", "chain"].startswith("5 ~ 6 < 7 > 8")
    # The pooled medians put 5, 6 and 7 in three different orders.
    table = why.by_category(laguna)
    pooled = table[table["concurrency"].eq(1) & table["category"].eq("") & table["budget"].le(7)]
    wide = pooled.pivot(index="max_running", columns="budget", values="value")
    assert len({tuple(row.sort_values().index) for _, row in wide.iterrows()}) == 3
    said = " ".join(why.headlines(laguna))
    assert "category code, concurrency 1: budgets 5 < 6 < 7 > 8" in said
    assert "all prompts pooled, concurrency 1" in said


def test_laguna_noise_floor_from_the_null_factor(laguna):
    """max-num-seqs should not matter at concurrency 1, yet medians move by 10 to 24 %."""
    floor = verdicts.noise_floor(laguna, "per_user_tok_s")
    null = floor[floor["source"].eq("null factor max_running") & floor["concurrency"].eq(1)]
    assert [round(value * 100, 1) for value in null["spread"]] == [20.6, 23.7, 22.5, 9.6, 23.9]


def test_laguna_has_one_restart_a_cell_and_no_winner(laguna):
    frame = verdicts.verdicts(laguna)
    assert set(frame["verdict"]) == {"reference", "no verdict"}
    assert set(verdicts.winners(frame, laguna)["standing"]) == {"no verdict"}


def test_a_folder_of_several_tools_names_what_is_none(tmp_path):
    shutil.copyfile(DATA / "vllm_made_up" / "plain.json", tmp_path / "a.json")
    shutil.copyfile(DATA / "specforge" / "dev_result.jsonl", tmp_path / "b.jsonl")
    (tmp_path / "package.json").write_text('{"name": "no result"}')
    data = load(tmp_path)
    assert set(data.cells["source"]) == {"vllm bench serve", "bench_speculative"}
    assert any("1 files in it are no results: package.json" in line for line in data.problems)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", b"\x00\xff\xfe" * 100, b"{}", b"[]", b"[1, 2]", b'{"a": ', b"a,b\n1,2\n", b"null", b"{" * 50_000],
)
def test_a_file_that_is_none_of_these_gets_one_clear_line(content, tmp_path):
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    assert "expected a results folder of specsweep, or output of" in message


def test_an_empty_folder_and_a_missing_path(tmp_path):
    with pytest.raises(InputError, match="no result file in it"):
        load(tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        load(tmp_path / "nothing")


def test_a_line_of_a_hundred_megabytes_is_skipped_without_being_kept(tmp_path):
    row = (DATA / "sglang_0.5.17" / "ar_c1.jsonl").read_bytes()
    path = tmp_path / "long.jsonl"
    with path.open("wb") as out:
        out.write(row)
        out.write(b'{"x": "')
        for _ in range(100):
            out.write(b"y" * 1024 * 1024)
        out.write(b'"}\n')
        out.write(row)
    data = load(path)
    assert len(data.cells) == 2
    assert data.problems == [f"{path}:2: line too long for a result row: skipped"]


def test_hostile_values_do_not_get_through(tmp_path):
    row = json.loads((DATA / "sglang_0.5.17" / "ar_c1.jsonl").read_text())
    row |= {
        "output_throughput": float("nan"),
        "duration": -5.0,
        "median_ttft_ms": float("inf"),
        "concurrency": 10**400,
        "tag": "<script>alert(1)</script>",
        "server_info": {**row["server_info"], "model_path": "<script>", "random_seed": {"a": []}},
    }
    path = tmp_path / "hostile.jsonl"
    path.write_text(json.dumps(row))
    try:
        cells = load(path).cells
    except InputError as error:
        assert "broken sglang.bench_serving row" in str(error)
    else:
        assert cells["status"].iloc[0] == "invalid"
        assert cells["system_tok_s"].isna().all() and cells["window_s"].isna().all()


def test_a_number_too_large_is_a_broken_row(tmp_path):
    row = json.loads((DATA / "sglang_0.5.17" / "ar_c1.jsonl").read_text())
    path = tmp_path / "large.jsonl"
    path.write_text(json.dumps({**row, "completed": 1e30}))
    with pytest.raises(InputError, match="requests_completed is 1e"):
        load(path)


def test_every_fixture_loads_into_every_table():
    data = load(DATA)
    assert set(data.cells["source"]) >= {importer.TOOL for importer in IMPORTERS} - {"Laguna sweep"}
    frame = verdicts.verdicts(data)
    assert frame["sentence"].notna().all()
    assert why.headlines(data)
    assert verdicts.what_differs(data)
    assert len(why.pays_until(frame)) > 0
    assert not loading.measured(data.cells).empty
