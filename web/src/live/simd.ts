/** Products of matrices by WebAssembly SIMD, where the browser has it; elsewhere the runtime's own loop stays. */
import { kernel, type Data } from "../../../src/qkv/specialize/runtime";
import wat from "./products.wat";

const SCRATCH = 1 << 22; // bytes each for a, b and out; larger products go by the runtime's own loop

/** Puts the fast product in place; whether that could be done. Call it before weights are loaded. */
export async function use_simd(): Promise<boolean> {
  const plain = kernel.products;
  let made: WebAssembly.WebAssemblyInstantiatedSource;
  try {
    made = await WebAssembly.instantiate(wat as BufferSource);
  } catch {
    return false; // no SIMD, or a page that forbids WebAssembly
  }
  const { memory, products } = made.instance.exports as { memory: WebAssembly.Memory; products: (...at: number[]) => void };
  const numbers = new Float32Array(memory.buffer);
  let free = 3 * SCRATCH;
  kernel.allocate = (n) => {
    if (free + 4 * n > memory.buffer.byteLength) return new Float32Array(n);
    const mine = new Float32Array(memory.buffer, free, n);
    free += 16 * Math.ceil(n / 4);
    return mine;
  };
  const place = (x: Data, at: number): number => {
    if (x.buffer === memory.buffer) return x.byteOffset;
    numbers.set(x, at >> 2);
    return at;
  };
  kernel.products = (a, b, out, n, k, m) => {
    const inside = b.buffer === memory.buffer || 4 * b.length <= SCRATCH;
    if (!inside || 4 * a.length > SCRATCH || 4 * n * m > SCRATCH || !n || !m || !k) return plain(a, b, out, n, k, m);
    products(place(a, 0), place(b, SCRATCH), 2 * SCRATCH, n, k, m);
    out.set(numbers.subarray((2 * SCRATCH) >> 2, ((2 * SCRATCH) >> 2) + n * m));
  };
  return true;
}
