"""Numeric parity once more with other kernels than this processor's own; `make isa` runs every test so."""

import isa
import pytest

NUMERIC = ("tests/core", "tests/families/test_families.py", "tests/generation/test_engine.py")


def test_parity_holds_under_another_instruction_set(capfd: pytest.CaptureFixture[str]) -> None:
    has = isa.flags()
    name = "AVX2" if "avx512f" in has else "no vector kernels"
    other = next(v for v in isa.VARIANTS if v.name == name)
    plain = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider")
    status = isa.run(other, [*plain, "-m", "parity and not nightly", *NUMERIC])
    assert status == 0, capfd.readouterr().out[-4000:]


@pytest.mark.parametrize(
    ("has", "run", "lacking"),
    [
        (set(), ["one thread, all that the processor has", "no vector kernels"], 3),
        ({"avx2"}, ["one thread, all that the processor has", "AVX2", "no vector kernels"], 2),
        ({"avx2", "avx512f", "amx_tile"}, [v.name for v in isa.VARIANTS if v.name != "AVX2"], 0),
    ],
)  # fmt: skip
def test_what_a_processor_lacks_is_named_and_not_run(has: set[str], run: list[str], lacking: int) -> None:
    chosen = list(isa.choose(has))
    assert [v.name for v, able in chosen if able] == run
    assert len([v for v, able in chosen if not able]) == lacking
