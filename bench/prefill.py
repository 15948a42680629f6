"""Reading a prompt of 512 tokens in bf16 is faster than with transformers, and several times faster than llama.cpp's.

A LLaMA shape with 430M random weights, batch 1. This is bound by the products: the limit says how fast this machine
multiplies bf16 matrices of 2,048 x 2,048, measured in the same run.
"""

from engines import compare, count_bytes, list_competitors, rate, write_llama
from harness import compete, options, write


def main() -> None:
    """All in turn; tokens a second, ratios, the limit and our share of it."""
    given = options(__doc__ or "", prompt=(512, "tokens to read"), bits=("bf16,int8,int4", "which of them"))
    given.prompt, given.tokens = 24 if given.smoke else given.prompt, 2
    found, skipped = compete(given, list_competitors(given.bits), prepare=write_llama)
    rates, reads = rate(found, "prefill", given.prompt), count_bytes(given.smoke, given.prompt)
    most = (2 * (reads["in_blocks"] * given.prompt + reads["head"])) / given.prompt
    limit = reads["machine"]["bf16_flops"] / most
    for name in [n for n in rates if n.startswith("qkv")]:
        rates[name]["of_the_limit"] = round(rates[name]["tokens_per_second"]["median"] / limit, 3)
    write("prefill", __doc__ or "", given, results=rates, ratio=compare(rates, "qkv bf16"), skipped=skipped,
          machine_gives=reads["machine"], limit_tokens_per_second=round(limit, 1))  # fmt: skip


if __name__ == "__main__":
    main()
