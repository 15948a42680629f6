"""What came before the Transformer, trained and measured as any core is: LSTMs and n-grams."""
