"""Objectives: what kinds of data become batches, and how a model that learnt them is judged. Start with base.py."""
