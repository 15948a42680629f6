"""Every bad input gets the answer that its case says: a sample with `make test`, the whole with `make nightly`."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from faults import cases


def judge(some: Iterable[cases.Case], folder: Path) -> list[str]:
    """What did not come out as its case says."""
    wrong: list[str] = []
    for n, case in enumerate(some):
        (place := folder / str(n)).mkdir()
        before = time.process_time()
        try:
            case.judge(place)
            assert time.process_time() - before < 20.0, "took more than a hundred times the usual"
        except Exception as e:  # whatever it is, the other cases are judged too
            wrong.append(f"{case.group}: {case.name}: {type(e).__name__}: {str(e)[:300]}")
    return wrong


def test_a_sample_of_the_faults_comes_out_as_it_should(tmp_path: Path) -> None:
    count, chosen = Counter(case.group for case in cases.all_cases()), cases.sample(400)
    assert (count["configs"] >= 3000, len(chosen) >= 390, min(count.values()) >= 30) == (True, True, True), count
    assert judge(chosen, tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize("group", [group.__name__ for group in cases.GROUPS])
def test_all_faults_come_out_as_they_should(group: str, tmp_path: Path) -> None:
    assert judge([case for case in cases.all_cases() if case.group == group], tmp_path) == []


def test_a_judge_sees_what_is_wrong(tmp_path: Path) -> None:
    def crash(_: Path) -> None:
        raise TypeError("unsupported operand")

    wrong = (cases.refuses(lambda _: 3), cases.answers(crash), cases.refuses(lambda _: cases.Data(valid=-1), "nosuch"))
    assert len(judge([cases.Case("x", "", one) for one in wrong], tmp_path)) == len(wrong)
