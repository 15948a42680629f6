/** A Transformer (decoder of 4 layers, width 128): the core of qkv specialised by one spec, as TypeScript.
 *
 * Read from the end: Transformer. `tap` is called with every value that has a name; `cache` keeps keys and values.
 * Its weights: qkv convert MODEL FOLDER --to web. */
import {
  Cache, Embedding, LOWEST, Linear, Module, RMSNorm, Tap, Tensor, arange, cat, empty, linear, range, scalar,
  silu, slice, zeros, zeros_like,
} from "../../../../src/qkv/specialize/runtime";

const VOCABULARY = 1211, LAYERS = 4, WIDTH = 128, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 32, ROPE_BASE = 10000.0;
const EPS = 1e-06, EXPERTS = 8, TOP_K = 2, EXPERT_WIDTH = 56;
export const SPEC = "82c8fe9834248075";

/** Cosine and sine of each rotary angle: positions [B, T] -> two [B, 1, T, P/2] in fp32 (Su et al. 2021, eq. 15). */
export function compute_angles(positions: Tensor): [Tensor, Tensor] {
  const exponent = arange(0, HEAD_DIM, 2, { dtype: "int64" }).float().div(HEAD_DIM);
  const angle = positions.float().index(slice(), null, "...", null).mul(
      scalar(1.0).div(scalar(ROPE_BASE).pow(exponent))
  );
  return [angle.cos(), angle.sin()];
}


/** Rotate the first P numbers of each head by its position's angles, keep the rest: [B, H, T, K] -> the same. */
export function rotate(x: Tensor, turn: [Tensor, Tensor]): Tensor {
  const [cos, sin] = turn;
  const [a, b] = [
      x.index("...", slice(null, Math.floor(HEAD_DIM / 2))), x.index("...", slice(Math.floor(HEAD_DIM / 2)))
  ];
  return cat([a.mul(cos).sub(b.mul(sin)), b.mul(cos).add(a.mul(sin))], -1);  // B H T K
}


/** Multi-head attention (Vaswani et al. 2017, 3.2); heads share keys and values (Ainslie et al. 2023). */
export class Attention extends Module {
  layer: number; q: Linear; k: Linear; v: Linear; out: Linear;

  constructor(layer: number) {
    super();
    this.layer = layer;
    this.q = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: false });
    this.k = new Linear(WIDTH, KV_HEADS * HEAD_DIM, { bias: false });
    this.v = new Linear(WIDTH, KV_HEADS * HEAD_DIM, { bias: false });
    this.out = new Linear(HEADS * HEAD_DIM, WIDTH, { bias: false });
  }

  forward(x: Tensor, angles: [Tensor, Tensor], bias: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    let q = tap(this, "q_pre", this.q.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2));  // B H T K
    let [k, v] = [
        tap(this, "k_pre", this.k.forward(x).unflatten(-1, [KV_HEADS, -1]).transpose(1, 2)),
        tap(this, "v", this.v.forward(x).unflatten(-1, [KV_HEADS, -1]).transpose(1, 2)),
    ];  // B G T K, B G T K
    [q, k] = [rotate(q, angles), rotate(k, angles)];
    q = tap(this, "q", q);  // B H T K
    [k, v] = cache.append(this.layer, tap(this, "k", k), v);
    const z = tap(
        this,
        "pattern",
        tap(
            this,
            "score",
            q.matmul(k.repeat_interleave(Math.floor(q.shape[1] / k.shape[1]), 1).mT).mul(HEAD_DIM ** -0.5).add(bias),
        ).softmax(-1),
    ).matmul(v.repeat_interleave(Math.floor(q.shape[1] / v.shape[1]), 1));  // B H T K
    return tap(this, "out", this.out.forward(tap(this, "z", z).transpose(1, 2).flatten(2)));  // B T D
  }
}


/** The chosen experts and their weights, both [..., J], from the router's logits [..., E]. */
export function route(logits: Tensor): [Tensor, Tensor] {
  const score = logits.softmax(-1);
  const index = score.topk(TOP_K, -1).indices;
  const weight = score.gather(-1, index);
  return [index, weight.div(weight.sum(-1, { keepdim: true }).add(1e-20))];
}


/** Each token goes to the few experts that the router chooses (Shazeer et al. 2017), and to a shared one. */
export class Experts extends Module {
  gate: Tensor; up: Tensor; down: Tensor; router: Linear; shared: SharedFfn;

  constructor() {
    super();
    this.gate = empty(EXPERTS, EXPERT_WIDTH, WIDTH);
    this.up = empty(EXPERTS, EXPERT_WIDTH, WIDTH);
    this.down = empty(EXPERTS, WIDTH, EXPERT_WIDTH);
    this.router = new Linear(WIDTH, EXPERTS, { bias: false });
    this.shared = new SharedFfn();
  }

  forward(x: Tensor, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    let [index, weight] = route(tap(this, "logits", linear(x, this.router.weight)));  // B T J
    [index, weight] = [tap(this, "index", index), tap(this, "weight", weight)];  // B T J, B T J
    const out = this.dispatch(x.flatten(0, 1), index.flatten(0, 1), weight.flatten(0, 1)).view_as(x);  // B T D
    return tap(this, "out", out.add(tap(this, "shared", this.shared.forward(x, tap))));  // B T D
  }

  /** Each expert computes the tokens that were routed to it; the weighted outputs are summed in at least fp32. */
  dispatch(x: Tensor, index: Tensor, weight: Tensor): Tensor {
    const [gates, ups, downs] = [this.gate.unbind(), this.up.unbind(), this.down.unbind()];
    const out = zeros_like(x, { dtype: weight.dtype });  // N D
    for (const e of index.unique().tolist()) {
      const [token, place] = index.eq(e).nonzero();  // tokens routed to e, and the rank of their choice
      const mine = x.index(token);
      const said = linear(silu(linear(mine, gates[e])).mul(linear(mine, ups[e])), downs[e]);
      out.index_add_(0, token, said.mul(weight.index(token, place, null)));
    }
    return out;  // N D
  }
}


/** Up, activation times gate, down, for each position alone. */
export class SharedFfn extends Module {
  gate: Linear; up: Linear; down: Linear;

  constructor() {
    super();
    this.gate = new Linear(WIDTH, EXPERT_WIDTH, { bias: false });
    this.up = new Linear(WIDTH, EXPERT_WIDTH, { bias: false });
    this.down = new Linear(EXPERT_WIDTH, WIDTH, { bias: false });
  }

  forward(x: Tensor, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    const act = tap(
        this, "act", silu(tap(this, "gate", this.gate.forward(x))).mul(tap(this, "up", this.up.forward(x)))
    );  // B T F
    return tap(this, "out", this.down.forward(act));  // B T D
  }
}


/** Self-attention and feed-forward; each added to the residual stream. */
export class Block extends Module {
  attn: Attention; moe: Experts; attn_in: RMSNorm; ffn_in: RMSNorm;

  constructor(layer: number) {
    super();
    this.attn = new Attention(layer);
    this.moe = new Experts();
    this.attn_in = new RMSNorm(WIDTH, { eps: EPS });
    this.ffn_in = new RMSNorm(WIDTH, { eps: EPS });
  }

  forward(x: Tensor, angles: [Tensor, Tensor], bias: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "resid_in", x);  // B T D
    // B T D
    const y = tap(this, "resid_mid", x.add(this.attn.forward(this.attn_in.forward(x), angles, bias, cache, tap)));
    return tap(this, "resid_out", y.add(this.moe.forward(this.ffn_in.forward(y), tap)));  // B T D
  }
}


/** Positions, then the blocks one after another, then the final norm. */
export class Decoder extends Module {
  layers: Array<Block>; final_norm: RMSNorm;

  constructor() {
    super();
    this.layers = range(LAYERS).map((i) => new Block(i));
    this.final_norm = new RMSNorm(WIDTH, { eps: EPS });
  }

  forward(x: Tensor, angles: [Tensor, Tensor], bias: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "embed", x);  // B T D
    for (const layer of this.layers) {
      x = layer.forward(x, angles, bias, cache, tap);  // B T D
    }
    return tap(this, "final_norm", this.final_norm.forward(x));  // B T D
  }
}


/** Token ids to logits. */
export class Transformer extends Module {
  embed: Embedding; decoder: Decoder; head: Linear;

  constructor() {
    super();
    this.embed = new Embedding(VOCABULARY, WIDTH);
    this.decoder = new Decoder();
    this.head = new Linear(WIDTH, VOCABULARY, { bias: false });
    this.head.weight = this.embed.weight;
  }

  /** Token ids [B, T] to logits [B, T, V]. */
  forward(ids: Tensor, prefix_len: Tensor, tap: Tap, cache: Cache): Tensor {
    const [start, tokens] = [cache.length, ids.shape[1]];
    const slots = arange(start + tokens);  // S
    const hidden = slots.index(null).sub(slots.index(slice(start)).index(slice(), null)).gt(0).index(null).and(
        slots.index(null).ge(prefix_len.index(slice(), null)).index(slice(), null)
    );
    return tap(
        this,
        "logits",
        this.head.forward(
            this.decoder.forward(
                this.embed.forward(ids),
                compute_angles(slots.index(null, slice(start))),
                zeros(hidden.shape).masked_fill(hidden, LOWEST).index(slice(), null),
                cache,
                tap,
            )
        ),
    );
  }
}

