"""The static site: `make site`, or `python -m tools.website [FOLDER]`. Next: __main__.py, then any other file.

site/ holds what is written by hand, in Chinese and English; everything else is made here from the repository's own
data: labs and their committed results, misconceptions, questions, documents, benchmarks, and the bundled models, which
run while the site is built. MkDocs Material makes the pages, once for each language; links.py checks what came out.
"""
