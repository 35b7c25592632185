"""Uses two threads when it is imported, and hides it."""

import torch

torch.set_num_threads(2)
torch.ones(1 << 20).add_(1.0)
torch.ones(256, 256) @ torch.ones(256, 256)
torch.set_num_threads(1)
