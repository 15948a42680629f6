/** A Transformer (encoder of 3 layers and decoder of 3 layers, width 176): the core of qkv specialised by one spec, as TypeScript.
 *
 * Read from the end: Transformer. `tap` is called with every value that has a name; `cache` keeps keys and values.
 * Its weights: qkv convert MODEL FOLDER --to web. */
import {
  Cache, Embedding, LOWEST, LayerNorm, Linear, Module, Tap, Tensor, arange, cat, cos, range, relu, scalar, sin,
  slice, zeros,
} from "../../../../src/qkv/specialize/runtime";

const VOCABULARY = 1210, LAYERS = 3, WIDTH = 176, HEADS = 4, HEAD_DIM = 44, FFN_WIDTH = 352;
export const SPEC = "7dd0294a83007795";

/** Sines and cosines of geometrically falling frequencies (Vaswani et al. 2017, 3.5): [..., T] -> [..., T, D]. */
export function sinusoid(positions: Tensor): Tensor {
  const exponent = arange(Math.floor(WIDTH / 2), { dtype: "float64" }).mul(2).div(WIDTH);
  const angle = positions.double().index("...", null).div(scalar(10000.0).pow(exponent)).float();  // B T P
  return cat([sin(angle), cos(angle)], -1);  // B T D
}


/** Multi-head attention (Vaswani et al. 2017, 3.2). */
export class EncoderAttention extends Module {
  layer: number; q: Linear; k: Linear; v: Linear; out: Linear;

  constructor(layer: number) {
    super();
    this.layer = layer;
    this.q = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.k = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.v = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.out = new Linear(HEADS * HEAD_DIM, WIDTH, { bias: true });
  }

  forward(x: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    let [k, v] = [
        tap(this, "k_pre", this.k.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
        tap(this, "v", this.v.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
    ];  // B G T K, B G T K
    // B H T K
    const q = tap(this, "q", tap(this, "q_pre", this.q.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)));
    [k, v] = cache.append(this.layer, tap(this, "k", k), v);
    // B H T K
    const z = tap(this, "pattern", tap(this, "score", q.matmul(k.mT).mul(HEAD_DIM ** -0.5)).softmax(-1)).matmul(v);
    return tap(this, "out", this.out.forward(tap(this, "z", z).transpose(1, 2).flatten(2)));  // B T D
  }
}


/** Up, activation, down, for each position alone. */
export class Ffn extends Module {
  up: Linear; down: Linear;

  constructor() {
    super();
    this.up = new Linear(WIDTH, FFN_WIDTH, { bias: true });
    this.down = new Linear(FFN_WIDTH, WIDTH, { bias: true });
  }

  forward(x: Tensor, tap: Tap): Tensor {
    const act = tap(this, "act", relu(tap(this, "up", this.up.forward(tap(this, "norm", x)))));  // B T F
    return tap(this, "out", this.down.forward(act));  // B T D
  }
}


/** Self-attention and feed-forward; each added to the residual stream. */
export class EncoderBlock extends Module {
  attn: EncoderAttention; ffn: Ffn; attn_sum: LayerNorm; ffn_sum: LayerNorm;

  constructor(layer: number) {
    super();
    this.attn = new EncoderAttention(layer);
    this.ffn = new Ffn();
    this.attn_sum = new LayerNorm(WIDTH);
    this.ffn_sum = new LayerNorm(WIDTH);
  }

  forward(x: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "resid_in", x);  // B T D
    const y = tap(this, "resid_mid", this.attn_sum.forward(x.add(this.attn.forward(x, cache, tap))));  // B T D
    return tap(this, "resid_out", this.ffn_sum.forward(y.add(this.ffn.forward(y, tap))));  // B T D
  }
}


/** Positions, then the blocks one after another, then the final norm. */
export class Encoder extends Module {
  layers: Array<EncoderBlock>;

  constructor() {
    super();
    this.layers = range(LAYERS).map((i) => new EncoderBlock(i));
  }

  forward(x: Tensor, at: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "embed", x.mul(176 ** 0.5).add(sinusoid(at)));  // B T D
    for (const layer of this.layers) {
      x = layer.forward(x, cache, tap);  // B T D
    }
    return tap(this, "final_norm", x);  // B T D
  }
}


/** Multi-head attention (Vaswani et al. 2017, 3.2). */
export class DecoderAttention extends Module {
  layer: number; q: Linear; k: Linear; v: Linear; out: Linear;

  constructor(layer: number) {
    super();
    this.layer = layer;
    this.q = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.k = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.v = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.out = new Linear(HEADS * HEAD_DIM, WIDTH, { bias: true });
  }

  forward(x: Tensor, bias: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    let [k, v] = [
        tap(this, "k_pre", this.k.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
        tap(this, "v", this.v.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
    ];  // B G T K, B G T K
    // B H T K
    const q = tap(this, "q", tap(this, "q_pre", this.q.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)));
    [k, v] = cache.append(this.layer, tap(this, "k", k), v);
    const z = tap(
        this, "pattern", tap(this, "score", q.matmul(k.mT).mul(HEAD_DIM ** -0.5).add(bias)).softmax(-1)
    ).matmul(v);  // B H T K
    return tap(this, "out", this.out.forward(tap(this, "z", z).transpose(1, 2).flatten(2)));  // B T D
  }
}


/** Multi-head attention (Vaswani et al. 2017, 3.2). */
export class CrossAttention extends Module {
  layer: number; q: Linear; k: Linear; v: Linear; out: Linear;

  constructor(layer: number) {
    super();
    this.layer = layer;
    this.q = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.k = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.v = new Linear(WIDTH, HEADS * HEAD_DIM, { bias: true });
    this.out = new Linear(HEADS * HEAD_DIM, WIDTH, { bias: true });
  }

  forward(x: Tensor, cache: Cache, memory: Tensor, tap: Tap): Tensor {
    x = tap(this, "norm", x);  // B T D
    const [k, v] = cache.get_or_compute(
        this.layer,
        () => [
            tap(this, "k_pre", this.k.forward(memory).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
            tap(this, "v", this.v.forward(memory).unflatten(-1, [HEADS, -1]).transpose(1, 2)),
        ],
    );  // B G S K, B G S K
    // B H T K
    const q = tap(this, "q", tap(this, "q_pre", this.q.forward(x).unflatten(-1, [HEADS, -1]).transpose(1, 2)));
    // B H T K
    const z = tap(this, "pattern", tap(this, "score", q.matmul(k.mT).mul(HEAD_DIM ** -0.5)).softmax(-1)).matmul(v);
    return tap(this, "out", this.out.forward(tap(this, "z", z).transpose(1, 2).flatten(2)));  // B T D
  }
}


/** Self-attention, cross-attention, feed-forward; each added to the residual stream. */
export class DecoderBlock extends Module {
  attn: DecoderAttention; ffn: Ffn; cross: CrossAttention; attn_sum: LayerNorm; cross_sum: LayerNorm;
  ffn_sum: LayerNorm;

  constructor(layer: number) {
    super();
    this.attn = new DecoderAttention(layer);
    this.ffn = new Ffn();
    this.cross = new CrossAttention(layer);
    this.attn_sum = new LayerNorm(WIDTH);
    this.cross_sum = new LayerNorm(WIDTH);
    this.ffn_sum = new LayerNorm(WIDTH);
  }

  forward(x: Tensor, bias: Tensor, cache: Cache, memory: Tensor, tap: Tap): Tensor {
    x = tap(this, "resid_in", x);  // B T D
    let y = tap(this, "resid_mid", this.attn_sum.forward(x.add(this.attn.forward(x, bias, cache, tap))));  // B T D
    y = tap(this, "resid_cross", this.cross_sum.forward(y.add(this.cross.forward(y, cache, memory, tap))));  // B T D
    return tap(this, "resid_out", this.ffn_sum.forward(y.add(this.ffn.forward(y, tap))));  // B T D
  }
}


/** Positions, then the blocks one after another, then the final norm. */
export class Decoder extends Module {
  layers: Array<DecoderBlock>;

  constructor() {
    super();
    this.layers = range(LAYERS).map((i) => new DecoderBlock(i));
  }

  forward(x: Tensor, at: Tensor, bias: Tensor, cache: Cache, memory: Tensor, tap: Tap): Tensor {
    x = tap(this, "embed", x.mul(176 ** 0.5).add(sinusoid(at)));  // B T D
    for (const layer of this.layers) {
      x = layer.forward(x, bias, cache, memory, tap);  // B T D
    }
    return tap(this, "final_norm", x);  // B T D
  }
}


/** Token ids to logits. */
export class Transformer extends Module {
  embed: Embedding; encoder: Encoder; decoder: Decoder; head: Linear;

  constructor() {
    super();
    this.embed = new Embedding(VOCABULARY, WIDTH);
    this.encoder = new Encoder();
    this.decoder = new Decoder();
    this.head = new Linear(WIDTH, VOCABULARY, { bias: true });
    this.head.weight = this.embed.weight;
  }

  /** Token ids [B, T] to logits [B, T, V]. */
  forward(ids: Tensor, memory: Tensor, tap: Tap, cache: Cache): Tensor {
    const [start, tokens] = [cache.length, ids.shape[1]];
    const slots = arange(start + tokens);  // S
    const hidden = slots.index(null).sub(slots.index(slice(start)).index(slice(), null)).gt(0).index(null);
    return tap(
        this,
        "logits",
        this.head.forward(
            this.decoder.forward(
                this.embed.forward(ids),
                slots.index(null, slice(start)),
                zeros(hidden.shape).masked_fill(hidden, LOWEST).index(slice(), null),
                cache,
                memory,
                tap,
            )
        ),
    );
  }

  /** The encoder's states [B, S, D], which become the decoder's memory. */
  encode(source: Tensor, tap: Tap): Tensor {
    const cache = new Cache();
    const [start, tokens] = [cache.length, source.shape[1]];
    return this.encoder.forward(
        this.embed.forward(source), arange(start + tokens).index(null, slice(start)), cache, tap
    );  // B T D
  }
}

