# %% [markdown]
# # Accelerate: a convolutional net with BatchNorm, OneCycleLR, a history of the notebook
# Form 1: the cell defines the function; a dictionary of lists from an earlier cell is filled in it and plotted later.
#
# Plain run: XLA:CPU. Compiles: 6.

# %%
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)

# %%
images = torch.randn(64, 1, 8, 8)
labels = (images.mean((1, 2, 3)) > 0).long()
train_set, test_set = TensorDataset(images[:48], labels[:48]), TensorDataset(images[48:], labels[48:])
history = {"loss": [], "accuracy": [], "lr": []}


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.classifier = nn.Linear(16, 2)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


net = Net()
mean, std = images[:48].mean(), images[:48].std()


# %%
# %%tpu_train net epochs=2
def train(model, epochs):
    accelerator = Accelerator()
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.2, epochs=epochs, steps_per_epoch=len(train_loader)
    )
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        running = 0.0
        for inputs, targets in train_loader:
            loss = criterion(model((inputs - mean) / std), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            running += loss.item()
        model.eval()
        right = 0
        with torch.no_grad():
            for inputs, targets in test_loader:
                predicted = model((inputs - mean) / std).argmax(1)
                right += accelerator.gather_for_metrics(predicted == targets).sum().item()
        history["loss"].append(running / len(train_loader))
        history["accuracy"].append(right / len(test_set))
        history["lr"].append(scheduler.get_last_lr()[0])


# %%
net.cpu().eval()
with torch.no_grad():
    confusion = net((images[48:] - mean) / std).softmax(1)

# %%
compared = {"history": history, "confusion": confusion, "weights": net, "batches": net.features[1].num_batches_tracked}
