/** A Transformer (decoder of 4 layers, width 128): the core of qkv specialised by one spec, as TypeScript.
 *
 * Read from the end: Transformer. `tap` is called with every value that has a name; `cache` keeps keys and values.
 * Its weights: qkv convert MODEL FOLDER --to web. */
import {
  Cache, Embedding, LOWEST, Linear, Module, RMSNorm, Tap, Tensor, arange, cat, range, scalar, silu, slice, zeros,
} from "../../../../src/qkv/specialize/runtime";

const VOCABULARY = 1000, LAYERS = 4, WIDTH = 128, HEADS = 4, HEAD_DIM = 32, ROPE_BASE = 10000.0, FFN_WIDTH = 320;
const EPS = 1e-06;
export const SPEC = "354eb5f51b465623";

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


/** Multi-head attention (Vaswani et al. 2017, 3.2). */
export class Attention extends Module {
  layer: number; q: Linear; k: Linear; v: Linear; out: Linear;

  constructor(layer: number) {
    super();
    this.layer = layer;
    this.q = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: false });
    this.k = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: false });
    this.v = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: false });
    this.out = new Linear(HEADS * HEAD_DIM, WIDTH, { bias: false });
  }

  forward(x: Tensor, angles: [Tensor, Tensor], bias: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    let q = tap(this, "q_pre", this.q.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2));  // B H T K
    let [k, v] = [
        tap(this, "k_pre", this.k.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
        tap(this, "v", this.v.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
    ];  // B G T K, B G T K
    [q, k] = [rotate(q, angles), rotate(k, angles)];
    q = tap(this, "q", q);  // B H T K
    [k, v] = cache.append(this.layer, tap(this, "k", k), v);
    const z = tap(
        this, "pattern", tap(this, "score", q.matmul(k.mT).mul(HEAD_DIM ** -0.5).add(bias)).softmax(-1)
    ).matmul(v);  // B H T K
    return tap(this, "out", this.out.forward(tap(this, "z", z).transpose(1, 2).flatten(2)));  // B T D
  }
}


/** Up, activation times gate, down, for each position alone. */
export class Ffn extends Module {
  gate: Linear; up: Linear; down: Linear;

  constructor() {
    super();
    this.gate = new Linear(WIDTH, FFN_WIDTH, { bias: false });
    this.up = new Linear(WIDTH, FFN_WIDTH, { bias: false });
    this.down = new Linear(FFN_WIDTH, WIDTH, { bias: false });
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
  attn: Attention; ffn: Ffn; attn_in: RMSNorm; ffn_in: RMSNorm;

  constructor(layer: number) {
    super();
    this.attn = new Attention(layer);
    this.ffn = new Ffn();
    this.attn_in = new RMSNorm(WIDTH, { eps: EPS });
    this.ffn_in = new RMSNorm(WIDTH, { eps: EPS });
  }

  forward(x: Tensor, angles: [Tensor, Tensor], bias: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "resid_in", x);  // B T D
    // B T D
    const y = tap(this, "resid_mid", x.add(this.attn.forward(this.attn_in.forward(x), angles, bias, cache, tap)));
    return tap(this, "resid_out", y.add(this.ffn.forward(this.ffn_in.forward(y), tap)));  // B T D
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
  forward(ids: Tensor, tap: Tap, cache: Cache): Tensor {
    const [start, tokens] = [cache.length, ids.shape[1]];
    const slots = arange(start + tokens);  // S
    const hidden = slots.index(null).sub(slots.index(slice(start)).index(slice(), null)).gt(0).index(null);
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

