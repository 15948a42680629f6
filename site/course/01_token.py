"""Tokens: a tokenizer cuts a text into pieces of its vocabulary; the model reads their numbers."""

# %% 句子切成词元 | A sentence is cut into tokens
import qkv

model = qkv.load("demo")  # a translator from Chinese; its vocabulary holds words
sentences = ["今早我去买了本书。", "我可以拥有一杯咖啡吗？", "大家共同努力。", "我昨天买了西红柿。"]
pieces = {text: model.tokenizer.pieces(model.ids(text)) for text in sentences}
numbers = {text: model.ids(text) for text in sentences}
pieces

# %% 另一个词表切出另一些词元 | Another vocabulary cuts otherwise
lm = qkv.load("demo-lm")  # a language model; its vocabulary holds pieces of English words
texts = ["One, Two, buckle my shoe", "unbelievable", "我爱学习"]
others = {text: lm.tokenizer.pieces(lm.ids(text)) for text in texts}
other_numbers = {text: lm.ids(text) for text in texts}
others

# %% 空格属于后面的词元 | The space belongs to the token behind it
rhyme = lm.ids("One, Two, Buckle")
with_spaces = [lm.tokenizer.decode(rhyme[: n + 1])[len(lm.tokenizer.decode(rhyme[:n])) :] for n in range(len(rhyme))]
with_spaces

# %% 摆成表 | As tables
tables = [[pieces[text], numbers[text]] for text in sentences]
other_tables = [[others[text], other_numbers[text]] for text in texts]
unknown = pieces["我昨天买了西红柿。"][4:7]
pairs = [[text, " | ".join(others[text])] for text in texts]
