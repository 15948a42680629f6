"""Pictures of numbers: forms.py says what is drawn, and terminal.py, html.py and figure.py (matplotlib) draw it."""
