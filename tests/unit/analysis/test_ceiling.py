"""The ceiling on made cells: the story of the two limits that were one, and where it must stay silent."""

import pytest

from analysis import ceiling, frames
from specsweep import record
from tests.made import cell

CUBLAS = "cuda.cublas.execution_failed"


def made(budget, max_running, failed=False, concurrency=32, klass=CUBLAS, **changes):
    return cell(
        budget=budget,
        max_running=max_running,
        concurrency=concurrency,
        tok_s=None if failed else 100.0,
        failure=record.Failure(klass=klass) if failed else None,
        settings={"max_running_requests": max_running},
        **changes,
    )


def found(cells):
    return ceiling.ceilings(frames.cells_frame(cells))


STORY = [made(8, 128), made(16, 128, failed=True), made(8, 256, failed=True)]


def test_the_two_limits_of_the_story_are_one_product():
    (only,) = found(STORY)
    assert only.rule is not None
    assert only.rule.quantity == "max-running x verify width"
    assert (only.rule.largest_ran, only.rule.smallest_failed) == (128 * 9, 128 * 17)
    assert only.rule.exceptions == ()
    assert "128 x 17 and 256 x 9 failed, 128 x 9 ran" in only.sentence
    assert only.rule.margin == pytest.approx(2176 / 1152)


def test_the_next_cells_lie_inside_the_gap_and_move_both_factors():
    (only,) = found(STORY)
    assert only.next_cells
    for proposal in only.next_cells:
        assert 128 * 9 < (proposal.budget + 1) * proposal.max_running < 128 * 17
        assert proposal.value == (proposal.budget + 1) * proposal.max_running
    assert len({proposal.budget for proposal in only.next_cells}) > 1
    assert len({proposal.max_running for proposal in only.next_cells}) > 1


def test_where_one_axis_is_enough_it_is_named_and_the_products_are_not_told_apart():
    (only,) = found([made(8, 128), made(16, 128, failed=True), made(32, 128, failed=True)])
    assert only.rule.quantity == "verify width"
    assert "max-running x verify width" in {rule.quantity for rule in only.equal_rules}
    assert "cannot tell it from" in only.sentence


def test_a_cell_that_would_tell_equal_rules_apart_is_proposed():
    (only,) = found([made(8, 128), made(16, 128, failed=True), made(32, 128, failed=True)])
    telling = [proposal for proposal in only.next_cells if proposal.tells_apart]
    assert telling
    # Too wide for a limit on the width, small enough for a limit on the product.
    assert telling[0].budget == 16
    assert telling[0].max_running * 17 <= 128 * 9


@pytest.mark.parametrize("klass", ["config.arg.unrecognized", "proc.port_in_use", "model.path_missing", "unknown"])
def test_failures_that_no_size_causes_are_not_looked_at(klass):
    assert found([made(8, 128), made(16, 128, True, klass=klass), made(8, 256, True, klass=klass)]) == []


def test_one_failure_is_too_few():
    (only,) = found([made(8, 128), made(16, 128, failed=True)])
    assert only.rule is None
    assert only.sentence.startswith("Cannot tell: 1 configuration failed")


def test_nothing_that_ran_is_too_little():
    (only,) = found([made(16, 128, failed=True), made(8, 256, failed=True)])
    assert only.rule is None


def test_no_failure_no_ceiling():
    assert found([made(8, 128), made(16, 128)]) == []


def test_failures_without_order_are_not_given_a_rule():
    cells = [made(budget, 128, failed=budget in (4, 16, 64)) for budget in (4, 8, 16, 32, 64, 128)]
    (only,) = found(cells)
    assert only.rule is None
    assert "no limit on one axis or on a product of two" in only.sentence


def test_a_single_exception_among_many_is_named():
    cells = [made(budget, 128) for budget in range(1, 13)]
    cells += [made(budget, 128, failed=True) for budget in range(16, 28)]
    cells.append(made(3, 64, failed=True))
    (only,) = found(cells)
    assert only.rule is not None
    assert len(only.rule.exceptions) == 1
    assert "budget 3, max-running 64" in only.rule.exceptions[0]
    assert "Exceptions: " in only.sentence


def test_a_load_point_that_was_never_reached_says_nothing_about_running_sequences():
    cells = []
    for budget in (8, 16):
        for concurrency in (8, 32, 64, 128):
            dead = concurrency * (budget + 1) > 600
            first = 64 if budget == 16 else 128
            cells.append(made(budget, None, dead, concurrency=concurrency, reached=not dead or concurrency == first))
    (only,) = found(cells)
    assert only.rule is not None
    names = [only.rule.quantity, *(rule.quantity for rule in only.equal_rules)]
    assert "running sequences x verify width" in names
    running = next(r for r in (only.rule, *only.equal_rules) if r.quantity == "running sequences x verify width")
    assert running.failed == 2, "the load points after the death were counted"


def test_invalid_and_skipped_cells_are_left_out():
    cells = [*STORY, made(4, 512, status="invalid"), made(4, 1024, status="skipped")]
    (only,) = found(cells)
    assert only.rule.ran == 1


def test_hosts_have_their_own_ceiling():
    other = [made(8, 128, host="b"), made(16, 128, host="b"), made(8, 256, host="b")]
    (only,) = found([*STORY, *other])
    assert only.where == "host1"
