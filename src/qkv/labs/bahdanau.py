"""Did attention free translation by LSTMs from their one vector? LSTM, LSTM with attention and Transformer, by length."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.baselines.lstm import alignment
from qkv.labs.arms import END, START, Shape, arm, batch, dictionary, learn, pairs, sentence, words_right, written
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet

ARMS: dict[Shape, int] = {"lstm": 112, "attention": 96, "transformer": 64}  # widths of about as many parameters
TRAINED, ASKED, ROWS, TEST = (1, 2, 3), (1, 2, 3, 5), 32, 60  # clauses of 6 to 8 words
SHOWN = (["明天", "老师", "会", "买", "红", "苹果", "，", "昨天", "她", "看", "了", "旧", "书"],
         ["the", "teacher", "will", "buy", "red", "apples", "tomorrow", ",", "she", "saw", "old", "books", "yesterday"])  # fmt: skip
READ = ("mingtian", "laoshi", "hui", "mai", "hong", "pingguo", ",", "zuotian", "ta", "kan", "le", "jiu", "shu", "end")


@torch.no_grad()
def pointed(model: qkv.Model, seed: int) -> float:
    """The share of English words whose strongest weight lies on the Chinese word that they come from."""
    import random

    number, luck = {word: i for i, word in enumerate(dictionary())}, random.Random(seed)
    hits: list[bool] = []
    for _ in range(TEST):
        said = sentence(luck, 2)
        source, target = ([number[w] for w in side] for side in (said.zh, said.en))
        best = alignment(model.core, [*source, END], [START, *target[:-1]]).argmax(-1).tolist()  # pyright: ignore[reportArgumentType]
        hits += [a == b for a, b in zip(best, said.origin, strict=True)]
    return sum(hits) / len(hits)


def run(seed: int, *, steps: int = 200, tell: Tell = quiet) -> Numbers:
    words = dictionary()
    number, data = {word: i for i, word in enumerate(words)}, pairs(seed, 8000, TRAINED)
    found: dict[str, float | list[float]] = {}
    for shape, width in ARMS.items():
        model = arm(shape, vocabulary=len(words), width=width, seed=seed)
        learn(model, lambda step, shape=shape: batch(shape, [data[(step * ROWS + i) % len(data)] for i in range(ROWS)]), steps=steps,
              tell=lambda said, shape=shape: tell(f"{shape}: {said}"))  # fmt: skip
        for clauses in ASKED:
            test = pairs(-1 - clauses - 10 * seed, TEST, (clauses,))
            found[f"{shape}_{clauses}"] = words_right(written(model, shape, test), test)
        if shape == "attention":
            source, target = ([number[w] for w in side] for side in SHOWN)
            seen = alignment(model.core, [*source, END], [START, *target[:-1]])  # pyright: ignore[reportArgumentType]
            found |= {"pointed": pointed(model, -1 - seed), **{f"look_{t}": row.tolist() for t, row in enumerate(seen)}}
    return found


def judge(runs: Runs) -> Verdict:
    plain, look, both = (tuple(runs.mean(f"{shape}_{n}") for n in (1, 3, 5)) for shape in ARMS)
    says = (f"1、3 个分句，译对的词：LSTM {plain[0]:.2f}、{plain[1]:.2f}；加注意力 {look[0]:.2f}、{look[1]:.2f}；Transformer {both[0]:.2f}、{both[1]:.2f}。"
            f"比训练时更长的 5 个分句：{plain[2]:.2f}、{look[2]:.2f}、{both[2]:.2f}，谁都不行。注意力最强处是该译的词：{runs.mean('pointed'):.2f}",
            f"words right at 1 and 3 clauses: LSTM {plain[0]:.2f}, {plain[1]:.2f}; with attention {look[0]:.2f}, {look[1]:.2f}; Transformer {both[0]:.2f}, "
            f"{both[1]:.2f}. At 5 clauses, longer than in training: {plain[2]:.2f}, {look[2]:.2f}, {both[2]:.2f}: none holds. The strongest weight lies on "
            f"the word that is translated in {runs.mean('pointed'):.2f}")  # fmt: skip
    frees = runs.low("attention_3") - runs.high("lstm_3") > 0.2
    return runs.verdict("true only when" if frees and look[2] < 0.8 else "shown" if frees else "not shown", "attention_3", says)


def plot(runs: Runs) -> Plot:
    rows = {f"{t + 1} {word}": runs.curve(f"look_{t}") for t, word in enumerate(SHOWN[1])}
    return Plot("grid", ("LSTM 的注意力：写每个英文词时看哪个中文词（拼音）", "LSTM with attention: where each English word looks (Chinese in pinyin)"), READ, rows)  # fmt: skip


NAMES = {"lstm": ("LSTM", "LSTM"), "attention": ("LSTM + 注意力", "LSTM + attention"), "transformer": ("Transformer", "Transformer")}
LAB = Lab(
    "trained",
    ("注意力让 RNN 翻译摆脱了“一个向量装下整句”的瓶颈，句子再长也不怕。",
     "Attention freed translation by RNNs from the bottleneck of one vector, however long the sentence."),
    ("Bahdanau、Cho、Bengio 2014（图 2）；几乎所有讲注意力来历的文章。", "Bahdanau, Cho and Bengio 2014 (figure 2); nearly every text on where attention comes from."),
    ("同一个小型中译英，同样的步数、数据与约 22 万参数：贪心译文里位置正确的词，按分句数（训练时 1 到 3 个，另问 5 个）。",
     "One small Chinese-English task, the same steps and data and about 220,000 parameters each: words that stand right in greedy translations, by clauses "
     "(1 to 3 in training, 5 asked besides)."),
    ("91 个词，随机约 0.01；基线是没有注意力的 LSTM。学习率相同，没有逐个调过；LSTM 多训练一倍步数仍是同样的形状。",
     "91 words, so chance is about 0.01; the LSTM without attention is the baseline. One learning rate for all, none tuned."),
    ("1 个分句都还行；3 个分句 LSTM 大跌，另外两个接近 1；比训练更长时都会跌。", "All manage 1 clause; at 3 the LSTM falls far, the others stay near 1; beyond the lengths of training all fall."),
    {**{f"{shape}_{n}": (f"{zh}，{n} 个分句", f"{en}, {n} clauses") for shape, (zh, en) in NAMES.items() for n in ASKED},
     "pointed": ("注意力最强处是该译的词", "strongest weight on the word translated")},
    run, judge, plot, steps=200, enough=100, seeds=3,
)  # fmt: skip
