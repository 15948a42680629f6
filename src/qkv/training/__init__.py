"""Training: `loop.train` is the whole of it on a page; settings, schedule, losses, optim, checkpoint are its parts."""
