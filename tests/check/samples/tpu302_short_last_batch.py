"""Training DataLoaders whose last batch is short, and those whose batches are all whole."""

import torch
import torch.utils.data as data_utils
import torch_xla
import torch_xla.core.xla_model as xm
import torchvision
from datasets import load_dataset
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Subset, TensorDataset, random_split
from torch_xla.distributed.parallel_loader import MpDeviceLoader

BATCH = 32
device = torch_xla.device()
eighty_four = TensorDataset(torch.randn(84, 16), torch.randint(0, 4, (84,)))
hundred_and_twenty_eight = TensorDataset(torch.zeros((128, 16)), torch.arange(128))
first, second = random_split(eighty_four, [64, 20])

shuffled = DataLoader(eighty_four, batch_size=BATCH, shuffle=True)  # TPU302: 20 rows instead of 32
dropped = DataLoader(eighty_four, batch_size=BATCH, shuffle=True, drop_last=True)  # ok: TPU302
whole = DataLoader(hundred_and_twenty_eight, batch_size=BATCH, shuffle=True)  # ok: TPU302
kept = DataLoader(eighty_four, BATCH, True, drop_last=False)  # TPU302: 20 rows instead of 32
one_by_one = DataLoader(eighty_four, shuffle=True)  # ok: TPU302
part = DataLoader(first, batch_size=BATCH, shuffle=True)  # ok: TPU302
rest = data_utils.DataLoader(second, batch_size=8, shuffle=True)  # TPU302: 4 rows instead of 8
subset = DataLoader(Subset(eighty_four, range(70)), batch_size=35, shuffle=True)  # ok: TPU302
listed = DataLoader([torch.ones(4) for _ in range(10)], batch_size=4, shuffle=True)  # TPU302: 2 rows instead of 4

mnist = torchvision.datasets.MNIST("data", train=True, download=True)
by_hundred = DataLoader(mnist, batch_size=100, shuffle=True)  # ok: TPU302
by_power_of_two = DataLoader(mnist, batch_size=128, shuffle=True)  # TPU302: 96 rows instead of 128

reviews = load_dataset("imdb", split="train[:1000]")
train_dataloader = DataLoader(reviews.shuffle(seed=0), batch_size=64)  # TPU302: 40 rows instead of 64
train_some = DataLoader(reviews.select(range(640)), batch_size=64)  # ok: TPU302
eval_dataloader = DataLoader(reviews, batch_size=64)  # ok: TPU302


class Rows(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((4,), float(index))


class Files(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.load(self.paths[index])


own = DataLoader(Rows(), batch_size=48, shuffle=True)  # ok: TPU302
files = DataLoader(Files(["a", "b"]), batch_size=BATCH, shuffle=True, num_workers=2)  # TPU302: keeps the short last batch
val_loader = DataLoader(Files(["c"]), batch_size=BATCH)  # ok: TPU302
loaders = {
    "train": DataLoader(Files(["a"]), batch_size=BATCH),  # TPU302: keeps the short last batch
    "test": DataLoader(Files(["b"]), batch_size=BATCH),  # ok: TPU302
}
sampler = BatchSampler(RandomSampler(eighty_four), batch_size=BATCH, drop_last=False)  # TPU302: BatchSampler keeps
by_sampler = DataLoader(eighty_four, batch_sampler=sampler)  # ok: TPU302


def make_data(rows):
    return TensorDataset(torch.randn(rows, 16), torch.zeros(rows))


made = DataLoader(make_data(320), batch_size=BATCH, shuffle=True)  # ok: TPU302


def options():
    return {"batch_size": BATCH, "shuffle": True, "drop_last": True}


unknown_options = DataLoader(eighty_four, **options())  # ok: TPU302


def train(paths):
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Files(paths), batch_size=BATCH)  # TPU302: keeps the short last batch
    for x in MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        xm.optimizer_step(optimizer)


def evaluate(model, paths):
    loader = DataLoader(Files(paths), batch_size=BATCH)  # ok: TPU302
    with torch.no_grad():
        for x in MpDeviceLoader(loader, device):
            model(x)
