# make demo: train, translate, look inside.  make test: every test.  Both make .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: help demo test check strict types floors isa bench size nightly real site clean

help:
	@echo "make demo      train the 2017 Transformer on the bundled corpus, translate, look inside (ARGS=… for qkv demo)"
	@echo "make test      every test but the nightly ones"
	@echo "make check     ruff, types, floors, size: a minute or less"
	@echo "make isa       every test under each instruction set that this processor has (AVX-512, AVX2, none)"
	@echo "make nightly   every test, the long ones too, on freshly drawn examples"
	@echo "make real      tests on released models, fetched once into QKV_REAL (default: ~/.cache/qkv/real)"
	@echo "make site      the website, into build/site: course, labs, questions, docs (ARGS=… for tools/website)"
	@echo "make bench     the benchmarks and how to run each"
	@echo "make size      lines per floor against the budget"
	@echo "make clean     remove .venv and caches (never your runs)"

# Nothing is installed again unless one of these two files changed.
.venv/run.stamp: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11+ or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) tools/install.py run

.venv/dev.stamp: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11+ or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) tools/install.py dev

demo: .venv/run.stamp
	@$(BIN)/qkv demo $(ARGS)

test: .venv/dev.stamp
	$(BIN)/python -m pytest -q -n auto --dist worksteal $(ARGS)

nightly: .venv/dev.stamp
	QKV_EXAMPLES=fresh $(BIN)/python -m pytest -q -m "nightly or not nightly" --timeout=7200 $(ARGS)

real: .venv/dev.stamp
	QKV_REAL=$${QKV_REAL:-$$HOME/.cache/qkv/real} $(BIN)/python -m pytest -q tests/real --timeout=1800 $(ARGS)

site: .venv/dev.stamp
	@$(BIN)/python -m tools.website --fetch $(ARGS)

isa: .venv/dev.stamp
	$(BIN)/python tools/isa.py $(ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff check
	@$(MAKE) --no-print-directory -j2 strict floors

# Floors 0 to 2 are held to the strict rules; `make types`, which CI runs, reads the rest as well.
strict: .venv/dev.stamp
	$(BIN)/basedpyright --pythonpath $(BIN)/python $$($(BIN)/python tools/size.py --paths 0 1 2)

types: .venv/dev.stamp
	$(BIN)/basedpyright --pythonpath $(BIN)/python

floors: .venv/dev.stamp
	$(BIN)/python -m pytest -q tests/test_floors.py tests/test_size.py
	@$(BIN)/python tools/web.py
	@$(BIN)/python tools/size.py

size:
	@$(PYTHON) tools/size.py

bench:
	@echo "Each script is one claim; it prints its numbers and writes bench/results/. Run one with: .venv/bin/python bench/NAME.py"
	@for f in bench/*.py; do [ -e "$$f" ] && printf '  %-28s %s\n' "$$f" "$$(sed -n '1s/^"""//;1s/"""$$//;1p' "$$f")"; done; true

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
