"""{"compiles": 2, "recompiles": [{"cause": "last-batch", "mentions": ["10", "16"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    table = torch.nn.Embedding(100, 8).to(device)
    head = torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
    rows = [{"input_ids": torch.randint(0, 100, (12,)), "label": torch.tensor(i % 2)} for i in range(42)]
    for _epoch in range(2):
        for batch in torch.utils.data.DataLoader(rows, batch_size=16):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            optimizer.zero_grad()
            logits = head(table(batch["input_ids"]).mean(dim=1))
            torch.nn.functional.cross_entropy(logits, batch["label"]).backward()
            xm.optimizer_step(optimizer)
            xm.mark_step()  # site
