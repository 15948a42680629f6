"""One sentence through the demo's translator takes less time by the compiled kernels than without them.

Each of the four runs (one beam, four; with the kernels, and without by QKV_NATIVE=0) is a process of its own; in turn.
"""

import json
import os
import statistics
import subprocess
import sys

from harness import in_turn, options, summary, write

SENTENCE = "我爱学习，也爱和朋友们一起去公园散步。"
CODE = """
import json, sys, time, torch, qkv
beam, sentence, count, threads = json.loads(sys.argv[1])
torch.set_num_threads(threads)
model, times = qkv.load("demo"), []
for _ in range(3 + count):
    start = time.perf_counter()
    text = model.translate([sentence], beam=beam)[0].text
    times.append(1000 * (time.perf_counter() - start))
print(json.dumps([text, times[3:]]))
"""


def main() -> None:
    given = options(__doc__ or "")
    count, rounds = (2, 1) if given.smoke else (15, given.rounds)

    def translate(beam: int, native: str) -> tuple[str, float]:
        asked = json.dumps([beam, SENTENCE, count, given.threads])
        done = subprocess.run([sys.executable, "-c", CODE, asked], env={**os.environ, "QKV_NATIVE": native},
                              capture_output=True, check=True, text=True)
        text, times = json.loads(done.stdout)
        return text, statistics.median(times)

    names = {f"{beam} beam{'s' * (beam > 1)}, {how}": (beam, native) for beam in (1, 4)
             for how, native in (("kernels", "1"), ("without", "0"))}
    found = in_turn({name: lambda pair=pair: translate(*pair) for name, pair in names.items()}, rounds)
    times = {name: summary([ms for _, (_, ms) in runs], 1) for name, runs in found.items()}
    same = [found[f"{beam}, kernels"][0][1][0] == found[f"{beam}, without"][0][1][0] for beam in ("1 beam", "4 beams")]
    write("one_sentence", __doc__ or "", given, milliseconds=times, same_translation=all(same), limit={})


if __name__ == "__main__":
    main()
