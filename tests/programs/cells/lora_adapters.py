# %% [markdown]
# # LoRA: adapters put into a frozen model, trained, merged
# Only the adapters' parameters require gradients and are in the optimizer; they are saved alone and merged afterwards.
#
# Plain run: CPU. Compiles: 3.

# %%
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(40)


# %%
class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + (x @ self.down.T @ self.up.T) * self.scale

    def merged(self):
        merged = nn.Linear(self.base.in_features, self.base.out_features)
        merged.weight.data = self.base.weight + self.up @ self.down * self.scale
        merged.bias.data = self.base.bias
        return merged


def add_adapters(model):
    for parameter in model.parameters():
        parameter.requires_grad = False
    for name, module in list(model.named_children()):
        if isinstance(module, nn.Linear):
            setattr(model, name, LoRALinear(module))
    return model


# %%
base = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
model = add_adapters(base)
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
x = torch.randn(64, 8)
dataset = TensorDataset(x, x[:, :4].argmax(1))
losses = []


# %%
# %%tpu_train model
def train(model, epochs=2):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset, batch_size=16))
    for _ in range(epochs):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())


# %%
adapters = {name: tensor for name, tensor in model.state_dict().items() if name.endswith(("up", "down"))}
torch.save(adapters, "adapters.pt")
frozen = {name: tensor for name, tensor in model.state_dict().items() if ".base" in name}
merged = nn.Sequential(*(layer.merged() if isinstance(layer, LoRALinear) else layer for layer in model))
with torch.no_grad():
    apart = (merged(x) - model(x)).abs().max() < 1e-5

# %%
compared = {
    "losses": losses,
    "adapters": torch.load("adapters.pt"),
    "base is frozen": all(torch.equal(kept, before[name.replace(".base", "")]) for name, kept in frozen.items()),
    "trainable": sum(parameter.numel() for parameter in trainable),
    "merged equals": bool(apart),
    "weights": merged,
}
