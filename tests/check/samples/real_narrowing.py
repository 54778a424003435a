"""What a program asks about the types of its values, and what it hands through."""

import torch
import torch_xla
class N(torch.nn.Module):
    def forward(self, x, y):
        if isinstance(x, float) and x > 3:  # ok: TPU101
            pass
        if not isinstance(x, torch.Tensor):
            if x > 3:  # ok: TPU101
                pass
        if not torch.is_tensor(y):
            if y > 3:  # ok: TPU101
                pass
        if isinstance(x, torch.Tensor):
            if x > 3:  # TPU101: depends on the value
                return x
        elif x > 4:  # ok: TPU101
            return 1
        z = 1 if torch.is_tensor(y) or y > 2 else 2  # ok: TPU101
        if torch.is_tensor(y):
            return y
        if y > 3:  # ok: TPU101
            return 2
        return z
def exists(v):
    return v is not None
def default(v, d):
    return v if exists(v) else d
class Net(torch.nn.Module):
    def forward(self, x, mask=None, n=None):
        mask = default(mask, torch.ones_like(x))
        n = default(n, 8)
        if n > 4:  # ok: TPU101
            x = x * 2
        if mask.sum() > 3:  # TPU101: depends on the value
            x = x * 3
        return x * mask
def f(h, w, x):
    if w > 3:  # ok: TPU101
        return x
    return x * 2
def main():
    kw = dict(batch_size=8, shuffle=True)
    kw.update(drop_last=True)
    loader = torch.utils.data.DataLoader(ds, **kw)  # ok: TPU302
    a, *b, c = (torch.ones(3), 1, 2, 3)
    if c > 2:  # ok: TPU101
        pass
    for batch in loader:
        out = f(*(3, 4), batch)
        out.backward()
