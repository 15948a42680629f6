"""Every bad input gets the answer that its case says: a sample with `make test`, the whole corpus with `make nightly`."""

import resource
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import cases
import pytest

SAMPLE, LEAST, HARD = 400, 3000, 20.0  # HARD: processor seconds of one case, more than a hundred times the usual


def judge(some: Iterable[cases.Case], folder: Path) -> list[str]:
    """What did not come out as its case says."""
    wrong: list[str] = []
    for n, case in enumerate(some):
        place = folder / str(n)
        place.mkdir()
        before = spent()
        try:
            case.judge(place)
        except Exception as e:  # whatever it is, the other cases are judged too
            wrong.append(f"{case.group}: {case.name}: {type(e).__name__}: {str(e)[:300]}")
        if spent() - before > HARD:
            wrong.append(f"{case.group}: {case.name}: took {spent() - before:.0f} s")
    return wrong


def spent() -> float:
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_a_sample_of_the_faults_comes_out_as_it_should(tmp_path: Path) -> None:
    chosen = cases.sample(SAMPLE)
    assert len(chosen) > 0.95 * SAMPLE
    assert judge(chosen, tmp_path) == []


def test_the_corpus_has_enough_cases_of_every_group() -> None:
    count = Counter(case.group for case in cases.all_cases())
    assert count.total() >= LEAST
    assert min(count.values()) >= 30, count


@pytest.mark.nightly
@pytest.mark.parametrize("group", sorted({case.group for case in cases.all_cases()}))
def test_all_faults_come_out_as_they_should(group: str, tmp_path: Path) -> None:
    assert judge([case for case in cases.all_cases() if case.group == group], tmp_path) == []


def test_a_judge_sees_what_is_wrong(tmp_path: Path) -> None:
    def crash(_: Path) -> None:
        raise TypeError("unsupported operand")

    wrong = [cases.Case("x", "taken", cases.refuses(lambda _: 3)), cases.Case("x", "crash", cases.answers(crash)),
             cases.Case("x", "unnamed", cases.refuses(lambda _: cases.override_run(None, ["a=1"]), "nosuch"))]  # type: ignore[arg-type]
    assert len(judge(wrong, tmp_path)) == len(wrong)
