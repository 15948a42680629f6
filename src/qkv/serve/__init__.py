"""Models over HTTP, as OpenAI's clients ask for them. Start with app.py; `qkv serve` runs it.

bodies.py      what each address may be asked; fields.py checks it
models.py      models by name, the unused unloaded; worker.py is one of them in the thread that computes
completions.py, echo.py, embeddings.py, translations.py    what is answered; writing.py has what they share
gate.py        who is let in; service.py what each may take, metrics.py what Prometheus reads
listen.py      the socket, and an end that loses nothing
replicas.py    several processes behind one address; vllm.py the same command line for vLLM's server
"""
