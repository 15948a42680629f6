/** A Transformer (encoder of 4 layers, width 144): the core of qkv specialised by one spec, as TypeScript.
 *
 * Read from the end: Transformer. `tap` is called with every value that has a name; `cache` keeps keys and values.
 * Its weights: qkv convert MODEL FOLDER --to web. */
import {
  Cache, Embedding, LayerNorm, Linear, Module, Tap, Tensor, arange, gelu, range, slice, tanh, zeros_like,
} from "../../../../src/qkv/specialize/runtime";

const VOCABULARY = 1212, LAYERS = 4, WIDTH = 144, HEADS = 4, HEAD_DIM = 36, FFN_WIDTH = 576, EPS = 1e-12;
const POSITIONS = 64, SEGMENTS = 2, LABELS = 10;
export const SPEC = "fa472d1f485c62f4";

/** Multi-head attention (Vaswani et al. 2017, 3.2). */
export class Attention extends Module {
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
    const act = tap(this, "act", gelu(tap(this, "up", this.up.forward(tap(this, "norm", x)))));  // B T F
    return tap(this, "out", this.down.forward(act));  // B T D
  }
}


/** Self-attention and feed-forward; each added to the residual stream. */
export class Block extends Module {
  attn: Attention; ffn: Ffn; attn_sum: LayerNorm; ffn_sum: LayerNorm;

  constructor(layer: number) {
    super();
    this.attn = new Attention(layer);
    this.ffn = new Ffn();
    this.attn_sum = new LayerNorm(WIDTH, { eps: EPS });
    this.ffn_sum = new LayerNorm(WIDTH, { eps: EPS });
  }

  forward(x: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(this, "resid_in", x);  // B T D
    const y = tap(this, "resid_mid", this.attn_sum.forward(x.add(this.attn.forward(x, cache, tap))));  // B T D
    return tap(this, "resid_out", this.ffn_sum.forward(y.add(this.ffn.forward(y, tap))));  // B T D
  }
}


/** Positions, then the blocks one after another, then the final norm. */
export class Encoder extends Module {
  positions: Embedding; segments: Embedding; embed_norm: LayerNorm; layers: Array<Block>;

  constructor() {
    super();
    this.positions = new Embedding(POSITIONS, WIDTH);
    this.segments = new Embedding(SEGMENTS, WIDTH);
    this.embed_norm = new LayerNorm(WIDTH, { eps: EPS });
    this.layers = range(LAYERS).map((i) => new Block(i));
  }

  forward(x: Tensor, at: Tensor, nowhere: Tensor, cache: Cache, tap: Tap): Tensor {
    x = tap(
        this, "embed", this.embed_norm.forward(x.add(this.positions.forward(at)).add(this.segments.forward(nowhere)))
    );  // B T D
    for (const layer of this.layers) {
      x = layer.forward(x, cache, tap);  // B T D
    }
    return tap(this, "final_norm", x);  // B T D
  }
}


/** A layer with an activation, and a norm. */
export class Dense extends Module {
  linear: Linear; norm: LayerNorm;

  constructor() {
    super();
    this.linear = new Linear(WIDTH, WIDTH, { bias: true });
    this.norm = new LayerNorm(WIDTH, { eps: EPS });
  }

  forward(x: Tensor): Tensor {
    return this.norm.forward(gelu(this.linear.forward(x)));
  }
}


/** An output projection that transforms and scales the states first, and may cap the logits. */
export class Head extends Linear {
  dense: Dense;

  constructor() {
    super(WIDTH, VOCABULARY, { bias: true });
    this.dense = new Dense();
  }

  override forward(input: Tensor): Tensor {
    return super.forward(this.dense.forward(input));
  }
}


/** A layer with an activation. */
export class Dense2 extends Module {
  linear: Linear;

  constructor() {
    super();
    this.linear = new Linear(WIDTH, WIDTH, { bias: true });
  }

  forward(x: Tensor): Tensor {
    return tanh(this.linear.forward(x));
  }
}


/** One state of each text, projected to labels. */
export class Labels extends Module {
  dense: Dense2; out: Linear;

  constructor() {
    super();
    this.dense = new Dense2();
    this.out = new Linear(WIDTH, LABELS, { bias: true });
  }

  forward(x: Tensor, tap: Tap): Tensor {
    return tap(this, "out", this.out.forward(this.dense.forward(x.index(slice(), 0))));
  }
}


/** Token ids to logits. */
export class Transformer extends Module {
  embed: Embedding; encoder: Encoder; head: Head; labels: Labels;

  constructor() {
    super();
    this.embed = new Embedding(VOCABULARY, WIDTH);
    this.encoder = new Encoder();
    this.head = new Head();
    this.head.weight = this.embed.weight;
    this.labels = new Labels();
  }

  /** Token ids [B, T] to logits [B, T, V]. */
  forward(ids: Tensor, tap: Tap, cache: Cache): Tensor {
    const [start, tokens] = [cache.length, ids.shape[1]];
    const at = arange(start + tokens).index(null, slice(start));  // B T
    return tap(
        this, "logits", this.head.forward(this.encoder.forward(this.embed.forward(ids), at, zeros_like(at), cache, tap))
    );
  }

  /** Logits over the labels of each text [B, labels]; texts are padded on the right. */
  classify(ids: Tensor, tap: Tap): Tensor {
    const cache = new Cache();
    const [start, tokens] = [cache.length, ids.shape[1]];
    const at = arange(start + tokens).index(null, slice(start));  // B T
    return this.labels.forward(this.encoder.forward(this.embed.forward(ids), at, zeros_like(at), cache, tap), tap);
  }
}

