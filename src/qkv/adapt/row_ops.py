"""What stands between the products of a decoding step, by row_ops.c: norm, rotation, gate, attention of single queries.

Letters: B rows, S keys, H heads, G key/value groups, K head dim, W value head dim.
"""

import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import spec
from qkv.adapt.native import Library
from qkv.adapt.row_products import address
from qkv.core.kernels import has_unit
from qkv.core.masks import AttentionBias
from qkv.errors import QkvError

ACTIVATIONS = {"relu": 0, "silu": 1, "gelu_tanh": 2}  # as row_ops.c numbers them
WIDE = 6  # queries that row_prompt.c reads together: fewer do not fit it
STEP = 16  # what is normed or gated has a multiple of so many numbers


def describe(name: str, **fields: str) -> type[ctypes.Structure]:
    """A struct of row_ops.c: for each C type the names of its fields in a row."""
    kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float, "n": ctypes.c_int32}
    listed = [(field, kinds[kind[0]]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": listed})


Norm = describe("Norm", p="x weight bias out", i="rows n", f="eps offset", n="centred low")
Turn = describe("Turn", p="x cos sin", i="rows heads size half step angles", n="neighbours low")
Gate = describe("Gate", p="gate up out", i="rows n step", n="kind low")
Attend = describe(
    "Attend", p="q k v out bias k_starts v_starts lengths slots",
    i="rows heads groups size value_size q_step k_step v_step k_group v_group bias_row bias_head",
    f="scale cap", n="low",
)

Prompt = describe(
    "Prompt", p="q k v out bias",
    i="rows heads groups tokens keys size value_size q_row q_head q_token k_row k_group k_step v_row v_group v_step "
      "bias_row bias_head bias_token", f="scale cap", n="causal",
)

Select = describe("Select", p="x barred ids out", i="rows n step count bars", n="low")


def norm(
    found: Library, x: Tensor, weight: Tensor, s: spec.Norm, bias: Tensor | None = None
) -> Tensor:
    """RMSNorm or LayerNorm of x [..., n] with weight [n] and bias [n], n a multiple of 16."""
    x, n, out = x.contiguous(), x.shape[-1], torch.empty(x.shape, dtype=x.dtype)
    job = Norm(x.data_ptr(), weight.data_ptr(), address(bias), out.data_ptr(), x.numel() // n, n, s.eps, s.offset,
               s.kind != "rms", x.dtype == torch.bfloat16)
    found.opened.qkv_norm(ctypes.addressof(job), *found.share_out(x.numel()))
    return out


def rotate(found: Library, x: Tensor, heads: int, size: int, turn: tuple[Tensor, Tensor], *, neighbours: bool) -> None:
    """Turn the first `heads` x `size` numbers of each row of x [B, T, n] in place, as positions.rotate does.

    `turn` is the cosine and sine [B or 1, 1, T, P/2] in fp32; rows lie one after another, as far apart as x says.
    """
    cos, sin = (t.contiguous() for t in turn)
    half, rows = cos.shape[-1], x.shape[0] * x.shape[1]
    job = Turn(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), rows, heads, size, half, x.stride(1), cos.numel() // half,
               neighbours, x.dtype == torch.bfloat16)
    found.opened.qkv_rotate(ctypes.addressof(job), *found.share_out(rows * heads * size))


def gate(found: Library, x: Tensor, up: Tensor | None, activation: str) -> Tensor:
    """act(x) * up, or act(x) without it: both [..., n], rows of either as far apart, n a multiple of 16."""
    n, out = x.shape[-1], torch.empty(x.shape, dtype=x.dtype)
    job = Gate(x.data_ptr(), address(up), out.data_ptr(), out.numel() // n, n, x.stride(-2), ACTIVATIONS[activation],
               x.dtype == torch.bfloat16)
    found.opened.qkv_gate(ctypes.addressof(job), *found.share_out(out.numel()))
    return out


def spread_bias(bias: Tensor | None, *shape: int) -> tuple[Tensor | None, tuple[int, ...]]:
    """`bias` in fp32 as [B, H, T, S], keys side by side, and how far apart rows, heads and queries of it lie."""
    if bias is None:
        return None, (0, 0, 0)
    wide = bias.float().expand(shape)
    wide = wide if wide.stride(3) == 1 else wide.contiguous()
    return wide, wide.stride()[:3]


def attend(
    found: Library, q: Tensor, k: Tensor, v: Tensor, *, scale: float, cap: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """softmax(cap(q kᵀ scale) + bias) v of one query a row: q [B, H, 1, K], k [B, G, S, K], v [B, G, S, W] -> [B, H W].

    `bias` [B or 1, H or 1, 1, S]; the last dimension of all lies in one piece. Where k, v and bias have fewer
    rows, as of sources, each of them is read by as many rows of q, which stand side by side.
    """
    rows, heads, _, size = q.shape
    keys, each = k.shape[2], rows // k.shape[0]
    steps = (q.stride(0), k.stride(2), v.stride(2), k.stride(1), v.stride(1))
    if bias is not None and 1 < bias.shape[0] < rows:
        bias = bias.repeat_interleave(each, 0)
    bias, spread = spread_bias(bias, rows, heads, 1, keys)
    sources = torch.arange(rows) // each
    places = sources * k.stride(0), sources * v.stride(0), torch.full((rows,), keys)  # B, B, B
    out = torch.empty(rows, heads * v.shape[3], dtype=q.dtype)
    job = Attend(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), address(bias),
                 *(t.data_ptr() for t in places), 0, rows, heads, k.shape[1], size, v.shape[3], *steps, *spread[:2],
                 scale, cap, q.dtype == torch.bfloat16)
    return run(found, job, out, k.numel())


def attend_pages(
    found: Library, q: Tensor, k: Tensor, v: Tensor, places: Sequence[int | Tensor], lengths: Sequence[int], *,
    scale: float, cap: float = 0.0,
) -> Tensor:
    """The same where keys of all rows lie in stores [slots, G, K] and [slots, G, W]: row r has the slots from
    places[r] on, or those that places[r] [S] lists, lengths[r] of them. Gives [B, H W].
    """
    rows, heads, _, size = q.shape
    each = ctypes.c_int64 * rows
    first = [place if isinstance(place, int) else 0 for place in places]
    starts = [each(*(place * t.stride(0) for place in first)) for t in (k, v)]
    slots = each(*(0 if isinstance(place, int) else place.data_ptr() for place in places))
    listed = 0 if all(isinstance(place, int) for place in places) else ctypes.addressof(slots)
    counts = each(*lengths)
    out = torch.empty(rows, heads * v.shape[2], dtype=q.dtype)
    job = Attend(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), 0, *map(ctypes.addressof, (*starts, counts)),
                 listed, rows, heads, k.shape[1], size, v.shape[2], q.stride(0), k.stride(0), v.stride(0), k.stride(1),
                 v.stride(1), 0, 0, scale, cap, q.dtype == torch.bfloat16)
    return run(found, job, out, sum(lengths) * k.shape[1] * size)


def attends_prompts(found: Library) -> bool:
    """Whether `attend_prompt` is compiled, and this processor has nothing faster, as AMX is."""
    return bool(found.opened.qkv_attends_prompts()) and not has_unit("amx_bf16")


def fits_prompt(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_prompt` takes such tensors."""
    near = q.stride(3) == k.stride(3) == v.stride(3) == 1 and q.dtype == k.dtype == v.dtype == torch.bfloat16
    return near and q.shape[2] >= WIDE and q.shape[3] % 32 == 0 and v.shape[3] % STEP == 0


def attend_prompt(
    found: Library, q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, *, scale: float, cap: float = 0.0
) -> Tensor:
    """softmax(cap(q kᵀ scale) + bias) v of many queries in bf16: q [B, H, T, K], k [B, G, S, K], v [B, G, S, W] to
    [B, T, H W]. `attends_prompts` says on which machines it is used, `fits_prompt` for which tensors.
    """
    rows, heads, tokens, size = q.shape
    keys = k.shape[2]
    bias, spread = spread_bias(mask.bias, rows, heads, tokens, keys)
    out = torch.empty(rows, tokens, heads * v.shape[3], dtype=q.dtype)
    sizes = rows, heads, k.shape[1], tokens, keys, size, v.shape[3]
    job = Prompt(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), address(bias), *sizes, *q.stride()[:3],
                 *k.stride()[:3], *v.stride()[:3], *spread, scale, cap, mask.causal)
    if found.opened.qkv_attend_prompt(ctypes.addressof(job), *found.share_out(rows * heads * tokens * keys)):
        raise MemoryError
    return out


def find_best(found: Library, logits: Tensor, count: int, forbid: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The log probabilities and ids of the `count` likeliest of each row, in two passes over it: two [B, count].

    A row with something that is no finite number, or too few above -inf, has a log probability that is not finite.
    """
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, size = logits.shape
    barred, ids = (ctypes.c_int64 * len(forbid))(*forbid), torch.empty(rows, count, dtype=torch.long)
    out = torch.empty(rows, count + 2)
    job = Select(logits.data_ptr(), ctypes.addressof(barred), ids.data_ptr(), out.data_ptr(), rows, size,
                 logits.stride(0), count, len(forbid), logits.dtype == torch.bfloat16)
    found.opened.qkv_select(ctypes.addressof(job), *found.share_out(logits.numel()))
    return out[:, :count] - (out[:, count] + out[:, count + 1].log())[:, None], ids


def run(found: Library, job: ctypes.Structure, out: Tensor, work: int) -> Tensor:
    """Start an attention job; give its output."""
    if found.opened.qkv_attend(ctypes.addressof(job), *found.share_out(work)):
        raise MemoryError
    return out


def check_library(found: Library) -> None:
    """QkvError where a kernel says something else than the formula written out, on small random numbers."""
    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        room = 2**-8 if dtype == torch.bfloat16 else 2**-18

        def expect(name: str, got: Tensor, want: Tensor, room: float = room) -> None:
            if not bool(((got.double() - want).abs() <= room * want.abs().clamp_min(1)).all()):
                raise QkvError("the compiled kernel computes {name} wrongly for {isa}", name=name, isa=found.isa)

        def draw_some(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(*shape, generator=draw).to(dtype)

        x, weight, more = draw_some(3, 48), draw_some(48), draw_some(48)
        want = F.rms_norm(x.double(), (48,), weight.double() + 1, 1e-5)
        expect("norm", norm(found, x, weight, spec.Norm("rms", 1e-5, 1.0)), want)
        want = F.layer_norm(x.double(), (48,), weight.double(), more.double(), 1e-5)
        expect("norm", norm(found, x, weight, spec.Norm("layer", 1e-5), more), want)
        for activation in ACTIVATIONS:
            one, two = x[:, :32].double().chunk(2, -1)
            act = {"relu": F.relu, "silu": F.silu, "gelu_tanh": lambda t: F.gelu(t, approximate="tanh")}[activation]
            expect("gate", gate(found, x[:, :16], x[:, 16:32], activation), act(one) * two)
        logits = draw_some(3, 5010)[:, :5003]
        logits[:, 68:72] += 4  # neighbours among the best
        barred = logits.argmax(-1).tolist()
        values, ids = find_best(found, logits, 3, barred)
        want = logits.double().log_softmax(-1).index_fill(1, torch.tensor(barred), -torch.inf)
        expect("the likeliest", values, want.topk(3).values, 2**-18)
        expect("the likeliest", values, want.gather(1, ids), 2**-18)
        q, k, v = draw_some(4, 6, 1, 45), draw_some(2, 2, 39, 45), draw_some(2, 2, 39, 61)
        bias = draw_some(2, 1, 1, 39, dtype=torch.float32)
        wide_k, wide_v, added = (t.double().repeat_interleave(2, 0) for t in (k, v, bias))
        score = q.double() @ wide_k.repeat_interleave(3, 1).mT * 0.2
        for cap in (0.0, 2.0):
            capped = cap * torch.tanh(score / cap) if cap else score
            want = (capped + added).softmax(-1) @ wide_v.repeat_interleave(3, 1)
            expect("attention", attend(found, q, k, v, scale=0.2, cap=cap, bias=bias), want.flatten(1))
    if found.opened.qkv_attends_prompts():
        check_prompts(found, draw)


def check_prompts(found: Library, draw: torch.Generator) -> None:
    """QkvError where attention of many queries says something else than the formula written out."""
    q, k, v = (torch.randn(2, 74, *shape, generator=draw).bfloat16().transpose(1, 2)
               for shape in ((4, 64), (2, 64), (2, 80)))  # as projections give them
    wide_k, wide_v = (t.double().repeat_interleave(2, 1) for t in (k, v))
    later, some = torch.ones(74, 74).triu(1) * -1e30, torch.randn(2, 1, 74, 74, generator=draw) * 3
    for mask, added, cap in ((AttentionBias(None, causal=True), later, 0.0),
                             (AttentionBias(some, causal=False), some, 2.0)):
        score = q.double() @ wide_k.mT * 0.2
        want = ((cap * torch.tanh(score / cap) if cap else score) + added).softmax(-1) @ wide_v
        got = attend_prompt(found, q, k, v, mask, scale=0.2, cap=cap).double()
        if not bool(((got - want.transpose(1, 2).flatten(2)).abs() <= 2**-6 * want.abs().amax()).all()):
            raise QkvError("the compiled kernel computes {name} wrongly for {isa}", name="attention", isa=found.isa)
