"""The core specialised by one spec: a program that stands alone, or the core's own text with its forks decided."""
