"""Models over HTTP, as OpenAI's clients ask for them. Start with app.py; `qkv serve` runs it.

fields.py      what a request may say, checked             gate.py      who is let in, and what each may cost
worker.py      the one thread in which a model computes    metrics.py   what Prometheus reads
models.py      models by name, the unused unloaded         app.py       the addresses; listen.py runs them
completions.py, embeddings.py, translations.py             what is answered
"""
