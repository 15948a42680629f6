"""Writing one token after another with 430M weights in 16, 8 and 4 bits is at least as fast as llama.cpp's.

A LLaMA shape with random weights, batch 1, greedy, after a prompt. This is bound by reading every weight once a token:
the limit says how fast this machine's memory lets anybody do that. llama.cpp reads the GGUF files that we write.
"""

from engines import compare, count_bytes, list_competitors, rate, write_llama
from harness import compete, options, write


def main() -> None:
    """All in turn; tokens a second, ratios at equal bits, the limit and each one's share of it."""
    given = options(__doc__ or "", prompt=(512, "tokens to read before"), tokens=(48, "tokens to write"),
                    bits=("bf16,int8,int4", "which of them"))  # fmt: skip
    if given.smoke:
        given.prompt, given.tokens = 24, 6
    found, skipped = compete(given, list_competitors(given.bits), prepare=write_llama)
    rates, reads = rate(found, "decode", 1), count_bytes(given.smoke, given.prompt)
    most = {kind: reads["machine"]["read_bytes"] / (reads["weights"][kind] + reads["keys"])
            for kind in given.bits.split(",")}  # fmt: skip
    ratio: dict[str, float] = {}
    for mine in [name for name in rates if name.startswith("qkv")]:
        bits = mine.removeprefix("qkv ")
        ratio |= compare({n: r for n, r in rates.items() if n == mine or (bits, n.split()[-1]) in ALIKE}, mine)
        rates[mine]["of_the_limit"] = round(rates[mine]["tokens_per_second"]["median"] / most[bits], 3)
    write("decode", __doc__ or "", given, results=rates, ratio=ratio, skipped=skipped, bytes_read=reads,
          limit_tokens_per_second={kind: round(tokens, 1) for kind, tokens in most.items()})  # fmt: skip


ALIKE = {("bf16", "bf16"), ("bf16", "BF16"), ("int8", "Q8_0"), ("int4", "Q4_0")}

if __name__ == "__main__":
    main()
