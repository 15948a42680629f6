"""Runs, from what was typed to a tested model. Four questions, and the files that answer each, in reading order.

How does a run start?   recipes/ (the door), own_data.py (files and words to settings), facts.py and planner.py (what
                        nobody set), session.py (from start to end), assemble.py (data, vocabulary, model, batches)
What does a step do?    loop.py, step.py, losses.py, then optim.py and schedule.py; objectives/ make its batches
What is saved?          run_dir.py (the files), checkpoint.py (the weights), probes/ (what it recorded of itself)
How is it judged?       evaluation.py (on validation and test), trivial.py (beside what needs no learning)
"""
