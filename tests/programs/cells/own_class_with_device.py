# %% [markdown]
# # A class that keeps its device and has `train` and `evaluate`, evaluated in the next cell
# The form of Kaggle notebooks: `self.device = torch_xla.device()` in `__init__`; made and trained in the training cell.
#
# Plain run: CPU. Compiles: 2.

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import torch_xla
except ImportError:
    torch_xla = None
torch.manual_seed(40)

# %%
x = torch.randn(80, 6)
y = (x[:, :3].sum(1) > x[:, 3:].sum(1)).long()
train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16)
valid_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)


# %%
class Fitter:
    def __init__(self, model, epochs=3):
        self.device = torch_xla.device() if torch_xla else torch.device("cpu")
        self.model = model.to(self.device)
        self.epochs = epochs
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        self.criterion = nn.CrossEntropyLoss().to(self.device)
        self.best, self.history = 0.0, []

    def train(self, loader):
        for epoch in range(self.epochs):
            self.model.train()
            for inputs, targets in loader:
                inputs, targets = inputs.to(self.device), targets.to(self.device)
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(inputs), targets)
                loss.backward()
                self.optimizer.step()
                if torch_xla:
                    torch_xla.sync()
                self.history.append((epoch, loss.item()))

    def evaluate(self, loader):
        self.model.eval()
        correct = count = 0
        with torch.no_grad():
            for inputs, targets in loader:
                logits = self.model(inputs.to(self.device))
                correct += (logits.argmax(1) == targets.to(self.device)).sum().item()
                count += len(targets)
        self.best = max(self.best, correct / count)
        return correct / count


# %%
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

# %%
# %%tpu_train
fitter = Fitter(model)
fitter.train(train_loader)

# %%
accuracy = fitter.evaluate(valid_loader)

# %%
compared = {
    "history": fitter.history,
    "accuracy": [accuracy, fitter.best],
    "weights": fitter.model,
    "same model": fitter.model is model,
    "optimizer": fitter.optimizer,
    "device": str(fitter.device),
}
