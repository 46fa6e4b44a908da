"""The decomposition and its sentences, on published rows and on made data."""

import math

import pytest

from analysis import results as loading
from analysis import verdicts, why
from benchmarks.make_results import Plan, Truth, write_sweep
from specsweep import record
from tests.made import cell, restarts, results

#: Published rows: acceptance length and speed of a reference and a variant, and what must be said of them.
#: Speeds are tok/s, or relative where the source gives only a ratio.  Sources: SpecForge dev_result.jsonl
#: (means of three, batch 8); a fork's note on Llama-3.1-8B EAGLE3 at batch 1; JetSpec's SGLang table (tree
#: budgets 64 and 128, concurrency 1); rmagur1203's 27B chain and tree; patrickbdevaney's Thor runs.
PUBLISHED = [
    ("specforge", 8, (2.56, 1805.0), (4.42, 1409.0), "acceptance up, throughput down"),
    ("fork note", 1, (3.91, 454.7), (2.91, 305.2), "both down"),
    ("jetspec b64", 1, (4.11, 774.9), (5.08, 283.9), "acceptance up, throughput down"),
    ("jetspec b128", 1, (3.76, 510.5), (5.22, 85.7), "acceptance up, throughput down"),
    ("rmagur1203 27B", 1, (3.20, 1.00), (3.31, 0.71), "acceptance up, throughput down"),
    ("patrickbdevaney", 1, (5.82, 40.4), (4.26, 17.5), "both down"),
]


@pytest.mark.parametrize(("source", "concurrency", "reference", "variant", "words"), PUBLISHED)
def test_published_rows_come_out_in_words(source, concurrency, reference, variant, words):
    (al_before, speed_before), (al_after, speed_after) = reference, variant
    data = results(
        [
            cell(budget=4, concurrency=concurrency, tok_s=speed_before, al=al_before, source=source),
            cell(budget=60, concurrency=concurrency, tok_s=speed_after, al=al_after, source=source),
        ]
    )
    row = why.decomposition(data).iloc[1]
    assert row["direction"] == words
    assert words in row["sentence"]
    assert "one restart: no verdict" in row["sentence"]
    assert row["break_even_al"] == pytest.approx(al_after * speed_before / speed_after)
    if words == "acceptance up, throughput down":
        assert any(words in line for line in why.headlines(data))


def test_the_three_factors_multiply_to_the_throughput(tmp_path):
    data = loading.load(write_sweep(tmp_path, Plan(repeats=3)))
    rows = why.decomposition(data)
    product = rows["running_ratio"] * rows["al_ratio"] / rows["step_time_ratio"]
    assert product.to_numpy() == pytest.approx(rows["throughput_ratio"].to_numpy())


def test_break_even_is_where_throughput_would_be_equal():
    data = results(
        [cell(budget=0, concurrency=32, tok_s=3900.0), cell(budget=32, concurrency=32, tok_s=3100.0, al=3.1)]
    )
    row = why.decomposition(data).iloc[1]
    assert row["break_even_al"] == pytest.approx(3.9)
    assert "budget 32 at concurrency 32 needs AL 3.9, measured 3.1" in row["sentence"]
    assert row["al_ratio"] == pytest.approx(3.1)


def test_break_even_against_the_truth(tmp_path):
    """The made server's break-even AL is its step time over the baseline's."""
    truth = Truth(width_ms=0.02, restart_sd=0.0, request_sd=0.0)
    data = loading.load(write_sweep(tmp_path, Plan(budgets=(16,), concurrencies=(32,), repeats=2), truth))
    row = why.decomposition(data).set_index("budget").loc[16]
    running = 32 * 0.97
    assert row["break_even_al"] == pytest.approx(
        truth.step_time_ms(running, 17) / truth.step_time_ms(running, 1), rel=0.01
    )


def test_pays_until_the_concurrency_where_it_stops(tmp_path):
    truth = Truth(width_ms=0.02)
    plan = Plan(budgets=(16,), concurrencies=(1, 8, 32, 128), repeats=4, request_files=False)
    data = loading.load(write_sweep(tmp_path, plan, truth))
    row = why.pays_until(verdicts.verdicts(data)).iloc[0]
    # Break-even of the model: 1 + 3 x (1 - 0.85^16) = 3.78 against (7 + 0.02 n 17) / (7 + 0.02 n).
    assert (row["pays_until"], row["first_not"]) == (32, 128)
    assert row["sentence"].startswith("ddtree b16 k4: pays until concurrency 32; at 128: -")


def test_pays_until_says_when_it_failed_and_when_it_is_one_restart():
    failure = record.Failure(klass="cuda.oom")
    data = results(
        [
            *(cell(budget=0, concurrency=c, tok_s=100.0 * c) for c in (1, 8)),
            cell(budget=8, concurrency=1, tok_s=200.0, al=2.0),
            cell(budget=8, concurrency=8, tok_s=None, failure=failure),
        ]
    )
    row = why.pays_until(verdicts.verdicts(data)).iloc[0]
    assert (row["pays_until"], row["first_not"], row["basis"]) == (1, 8, "one restart")
    assert "cuda.oom" in row["sentence"] and "no verdict" in row["sentence"]


def test_never_paying_and_paying_again_are_said():
    cells = []
    for concurrency, ratio in ((1, 0.9), (8, 1.2)):
        cells += restarts([100.0, 101.0, 99.0], budget=0, concurrency=concurrency)
        cells += restarts([100 * ratio, 101 * ratio, 99 * ratio], budget=8, concurrency=concurrency)
    row = why.pays_until(verdicts.verdicts(results(cells))).iloc[0]
    assert math.isnan(row["pays_until"])
    assert "does not pay at concurrency 1" in row["sentence"]
    assert "pays again at 8" in row["sentence"]


def test_marginal_gain_of_the_last_doubling():
    cells = restarts([100.0, 101.0, 99.0], budget=0)
    for budget, speed in ((8, 200.0), (16, 220.0), (32, 198.0)):
        cells += restarts([speed, speed * 1.01, speed * 0.99], budget=budget, al=2.0)
    rows = why.decomposition(results(cells)).set_index("budget")
    assert math.isnan(rows.loc[8, "doubling_gain"])
    assert rows.loc[16, "doubling_gain"] == pytest.approx(0.1)
    assert rows.loc[32, "doubling_gain"] == pytest.approx(-0.1)
    assert any("from budget 16 to 32 throughput falls by 10.0%" in line for line in why.headlines(results(cells)))


def test_the_gain_per_doubling_is_scaled_when_the_step_was_not_two():
    cells = [cell(budget=0, tok_s=100.0), cell(budget=4, tok_s=100.0, al=2.0), cell(budget=16, tok_s=144.0, al=2.0)]
    assert why.decomposition(results(cells)).set_index("budget").loc[16, "doubling_gain"] == pytest.approx(0.2)


def test_an_underpowered_throughput_is_not_called_up_or_down():
    assert why.direction(1.5, 1.02, verdict="underpowered") == "acceptance up, throughput not told apart"
    assert why.direction(1.5, 1.002, verdict="tie") == "acceptance up, throughput unchanged"
    assert why.direction(math.nan, 0.9) == "acceptance unknown, throughput down"


def test_a_category_can_show_what_the_pooled_number_hides():
    """Two categories that rank the budgets alike at both settings; the pooled medians do not."""
    cells = []
    pooled = {(64, 4): 20.0, (64, 8): 21.0, (128, 4): 21.0, (128, 8): 20.0}
    for (running, budget), median in pooled.items():
        categories = {
            "code": record.Category(requests=4, output_tokens=400, per_user_tok_s=30.0 + budget + running / 100),
        }
        cells.append(
            cell(budget=budget, tok_s=median, max_running=running, categories=categories, per_user_tok_s=median)
        )
    orders = why.category_orders(results(cells)).set_index("category")
    assert orders.loc["code", "chain"] == "4 < 8" and orders.loc["code", "consistent"]
    assert orders.loc["", "chain"] == "4 ~ 8" and orders.loc["", "orders"] == 2
    assert any("category code" in line for line in why.headlines(results(cells)))


def test_a_category_gets_its_own_verdict():
    """Code gains, chat loses, the pooled number ties."""

    def with_categories(budget, code, chat):
        cells = restarts([100.0, 100.1, 99.9], budget=budget)
        for number, made in enumerate(cells):
            made.categories = {
                name: record.Category(requests=4, per_user_tok_s=value + number / 10)
                for name, value in (("code", code), ("chat", chat))
            }
        return cells

    table = why.by_category(results(with_categories(0, 100.0, 100.0) + with_categories(8, 150.0, 60.0)))
    found = table[table["budget"].eq(8)].set_index("category")["verdict"].to_dict()
    assert found == {"code": "better", "chat": "worse", "": "tie"}


def test_headlines_say_one_restart_first():
    lines = why.headlines(results([cell(budget=0), cell(budget=8, tok_s=200.0, al=2.0)]))
    assert lines[0].startswith("one restart: no verdict")


def test_headlines_of_nothing():
    assert why.headlines(results([])) == ["nothing was measured"]
