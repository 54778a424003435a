"""{"compiles": 2, "recompiles": [{"cause": ["optimizer-state", "python-number"]}]}"""

import torch
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup


def train():
    accelerator = Accelerator()
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=4, num_training_steps=20)
    data = torch.utils.data.TensorDataset(torch.randn(80, 16), torch.randint(0, 4, (80,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for x, y in loader:  # site
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
