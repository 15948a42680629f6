"""The inside of a model as a page: page.py writes one offline HTML file. The live page comes later."""
