"""The simulation of bench/capacity.py waits as queueing theory says (Pollaczek and Khinchine), and alone not at all."""

import random
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def capacity(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("capacity")


def arrive(capacity: Any, rate: float, count: int, *, prompt: int = 100, tokens: int = 1) -> list[Any]:
    """Requests of one size that come at random moments."""
    draw, at, found = random.Random(0), 0.0, list[Any]()
    for n in range(count):
        at += draw.expovariate(rate)
        found.append(capacity.Ask(at, prompt, tokens, n))
    return found


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_one_machine_waits_as_a_queue_of_even_service_does(capacity: Any, busy: float) -> None:
    rates = capacity.Rates(prompt=1000.0, first=0.1, each=0.0, rows=8)  # each request takes 0.2 s
    machine, first = capacity.Machine(), list[float]()
    for one in arrive(capacity, busy / 0.2, 40_000):
        machine.advance(rates, one.at, first)
        machine.free = max(machine.free, one.at)
        machine.waiting.append(one)
    machine.advance(rates, float("inf"), first)
    assert len(first) == 40_000
    assert sum(first) / len(first) == pytest.approx(0.2 + 0.2 * busy / (2 * (1 - busy)), rel=0.05)


def test_more_machines_wait_less_and_alone_nobody_does(capacity: Any) -> None:
    rates = capacity.Rates(prompt=1000.0, first=0.02, each=0.001, rows=4)
    asked = arrive(capacity, 8.0, 2000, tokens=20)
    late = [capacity.simulate(asked, rates, count)["first_p95"] for count in (1, 2, 4, 64)]
    assert late == sorted(late, reverse=True)
    assert late[-1] == pytest.approx(0.1 + rates.step(1), abs=1e-4)
    assert late[0] > 10 * late[-1]
    found = capacity.count_machines(asked, rates, 8.0, late[2] * 1.5, 200.0)
    assert found["first_p95"] <= late[2] * 1.5
    assert 2 <= found["machines"] <= 4
