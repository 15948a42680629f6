"""The inside of a model as a page: question.py asks a model, answers.py makes the answers, server.py serves them live.

record.py writes the page with its answers as one offline HTML file; tables.py prints the readouts on a terminal.
"""
