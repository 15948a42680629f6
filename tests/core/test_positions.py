"""Sinusoids and rotations against slow loops, at head dim 32, where a wrong frequency shows."""

import cmath
import math

import pytest
import torch
from support import zoo

from qkv.core import positions
from qkv.core.positions import bucket_distances, compute_angles, rotate, sinusoid
from qkv.lens.trace import Trace
from qkv.spec import Relative, Rotary, Scaling

DIM = 32


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("width", [32, 33])
def test_sinusoids_are_the_paper_s(width: int, layout: str) -> None:
    at = torch.tensor([[0, 1, 2, 511], [7, 63, 1000, 5]])
    got = sinusoid(at, width, layout)
    for (b, t), p in ((i, int(at[i])) for i in [(0, 0), (0, 1), (0, 3), (1, 2)]):
        for i in range(width):
            pair = i // 2 if layout == "interleaved" else i % ((width + 1) // 2)
            sine = i % 2 == 0 if layout == "interleaved" else i < (width + 1) // 2
            angle = p / 10_000 ** (2 * pair / width)
            near = 2**-23 * (1.0 + angle)  # the angle itself is rounded to float32
            assert got[b, t, i].item() == pytest.approx(math.sin(angle) if sine else math.cos(angle), abs=near)


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (1, 1)])
def test_sinusoids_span_the_frequencies_as_other_toolkits_count(offset: int, first: int) -> None:
    spec = zoo.two_words("spanning", offset)
    core, width = zoo.made(spec), spec.stack.width
    rate = math.log(10_000) / (width // 2 - 1)  # as Tensor2Tensor has it; OpenNMT-tf begins at 1
    with torch.no_grad():
        core.source_embed.weight.zero_()
        with Trace(core, save=["encoder.embed"]) as trace:
            core.encode(torch.zeros(1, 5, dtype=torch.long))
    for t in range(5):
        angles = [(t + first) * math.exp(-rate * i) for i in range(width // 2)]
        expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        assert torch.allclose(trace["encoder.embed"][0, t], expected, atol=1e-6)


def turned(x: torch.Tensor, at: torch.Tensor, s: Rotary) -> torch.Tensor:
    """The rotation number by number, as a complex product."""
    out = x.clone()
    for b in range(x.shape[0]):
        for t in range(x.shape[2]):
            for i in range(s.dim // 2):
                one, two = (i, i + s.dim // 2) if s.pairs == "half" else (2 * i, 2 * i + 1)
                turn = cmath.exp(1j * int(at[b, t]) * s.base ** (-2 * i / s.dim))
                for h in range(x.shape[1]):
                    z = complex(float(x[b, h, t, one]), float(x[b, h, t, two])) * turn
                    out[b, h, t, one], out[b, h, t, two] = z.real, z.imag
    return out


SPECS = [Rotary(32), Rotary(32, pairs="interleaved"), Rotary(16, 500_000.0), Rotary(8, pairs="interleaved")]


@pytest.mark.parametrize("s", SPECS, ids=str)
def test_rotation_is_a_complex_product(s: Rotary) -> None:
    x, at = torch.randn(2, 3, 4, DIM), torch.tensor([[0, 1, 2, 3], [9, 40, 41, 300]])
    assert (rotate(x, compute_angles(at, s), s) - turned(x, at, s)).abs().max() <= 1e-4


@pytest.mark.parametrize("s", SPECS, ids=str)
def test_scores_depend_on_the_distance_alone(s: Rotary) -> None:
    q, k = torch.randn(1, 1, 1, DIM), torch.randn(1, 1, 1, DIM)

    def score(a: int, b: int) -> float:
        one, two = (rotate(x, compute_angles(torch.tensor([[p]]), s), s) for x, p in ((q, a), (k, b)))
        return float((one * two).sum())

    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-3)
    assert abs(score(5, 2) - score(5, 4)) > 1e-3


def test_rotation_keeps_lengths_and_position_zero() -> None:
    s, x = Rotary(16), torch.randn(2, 3, 4, DIM)
    out = rotate(x, compute_angles(torch.arange(4)[None], s), s)
    assert torch.allclose(out.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.equal(out[:, :, 0], x[:, :, 0])
    assert torch.equal(out[..., 16:], x[..., 16:])


def test_angles_are_exact_in_fp32_far_out() -> None:
    cos, _ = compute_angles(torch.tensor([[100_000]]), Rotary(DIM))
    assert cos.dtype == torch.float32
    assert cos[0, 0, 0, 0].item() == pytest.approx(math.cos(100_000), abs=1e-2)


@pytest.mark.parametrize("fault", ["sign", "exponent"])
def test_a_wrong_rotation_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def wrong(at: torch.Tensor, s: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        if fault == "sign":
            return positions.compute_angles(-at, s)
        return positions.compute_angles(at, Rotary(s.dim, s.base**0.9, s.pairs))

    monkeypatch.setitem(globals(), "compute_angles", wrong)
    with pytest.raises(AssertionError):
        test_rotation_is_a_complex_product(SPECS[0])


def speed(s: Rotary, i: int, length: int) -> float:
    """How fast pair i turns, number by number, from the papers and blog posts that proposed each scaling."""
    base, by = s.base, s.scaling
    assert by
    if by.kind == "dynamic" and length > by.trained:
        base *= (by.factor * length / by.trained - (by.factor - 1)) ** (s.dim / (s.dim - 2))
    plain = base ** (-2 * i / s.dim)
    if by.kind == "dynamic":
        return plain
    if by.kind == "linear":
        return plain / by.factor
    if by.kind == "longrope":
        return plain / (by.long if length > by.trained else by.short)[i]
    turns = by.trained * plain / (2 * math.pi)
    if by.kind == "wavelength":
        stays = min(1.0, max(0.0, (turns - by.slow) / (by.fast - by.slow)))
    else:
        def at(n: float) -> float:
            return s.dim * math.log(by.trained / (n * 2 * math.pi)) / (2 * math.log(s.base))

        low, high = at(by.fast), at(by.slow)
        low, high = (math.floor(low), math.ceil(high)) if by.whole == "rounded" else (low, high)
        stays = 1 - min(1.0, max(0.0, (i - max(low, 0)) / (min(high, s.dim - 1) - max(low, 0))))
    return stays * plain + (1 - stays) * plain / by.factor


SCALINGS = [
    Scaling("linear", 4.0), Scaling("dynamic", 4.0, 64), Scaling("dynamic", 4.0, 4096),
    Scaling("wavelength", 8.0, 256, 1.0, 4.0), Scaling("yarn", 4.0, 256),
    Scaling("yarn", 4.0, 256, whole="exact", gain=1.2), *(
        Scaling("longrope", 1.0, n, gain=1.2, short=tuple(range(1, 33)), long=tuple(range(2, 34))) for n in (300, 301)),
]  # fmt: skip


@pytest.mark.parametrize("by", SCALINGS, ids=str)
def test_slowed_angles_are_the_papers(by: Scaling) -> None:
    s, at = Rotary(64, 10_000.0, scaling=by), torch.tensor([[0, 1, 100, 300]])
    cos, sin = compute_angles(at, s)
    for t, p in enumerate(at[0].tolist()):
        for i in range(32):
            angle = p * speed(s, i, 301)
            assert cos[0, 0, t, i].item() == pytest.approx(math.cos(angle) * by.gain, abs=3e-4)
            assert sin[0, 0, t, i].item() == pytest.approx(math.sin(angle) * by.gain, abs=3e-4)


@pytest.mark.parametrize("direction", ["both", "past"])
def test_buckets_are_one_distance_near_and_ever_more_far(direction: str) -> None:
    s = Relative(32, 128, 2, direction)  # type: ignore[arg-type]
    got = bucket_distances(150, 200, s, torch.device("cpu"))
    assert got.shape == (200, 350)
    for t in range(0, 200, 7):
        for k in range(350):
            back = 150 + t - k
            half, exact = (16, 8) if direction == "both" else (32, 16)
            base = half if direction == "both" and back < 0 else 0
            back = abs(back) if direction == "both" else max(back, 0)
            if back >= exact:
                far = math.log(back / exact) / math.log(128 / exact) * (half - exact)
                back = min(half - 1, exact + int(far + 1e-6))
            assert got[t, k].item() == base + back
