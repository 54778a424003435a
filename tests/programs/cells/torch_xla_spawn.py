# %% [markdown]
# # torch_xla: `xmp.spawn` with MpDeviceLoader and a checkpoint
# The form of PyTorch/XLA's own notebooks: `FLAGS`, a `_mp_fn` that saves with `xm.save`, and the checkpoint loaded in
# the cell after.
#
# Plain run: XLA:CPU. Compiles: 5.

# %%
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FLAGS = {"batch_size": 8, "num_epochs": 2, "learning_rate": 0.05, "log_steps": 2}
torch.manual_seed(21)


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4 * 6, 3)

    def forward(self, x):
        return nn.functional.log_softmax(self.head(torch.relu(self.norm(self.conv(x))).flatten(1)), dim=1)


series = torch.randn(48, 2, 8)
classes = series[:, 0].abs().argmax(1) % 3
WRAPPED_MODEL = xmp.MpModelWrapper(Net())


# %%
def _mp_fn(index, flags):
    device = xm.xla_device()
    model = WRAPPED_MODEL.to(device)
    dataset = TensorDataset(series, classes)
    sampler = DistributedSampler(dataset, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True)
    loader = DataLoader(dataset, batch_size=flags["batch_size"], sampler=sampler, drop_last=True)
    loader = pl.MpDeviceLoader(loader, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=flags["learning_rate"] * xr.world_size())
    losses = []
    for epoch in range(flags["num_epochs"]):
        sampler.set_epoch(epoch)
        model.train()
        for step, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(model(data), target)
            loss.backward()
            xm.optimizer_step(optimizer)
            if step % flags["log_steps"] == 0:
                xm.add_step_closure(lambda loss: losses.append(loss.item()), args=(loss,))
        reduced = xm.mesh_reduce("loss", losses[-1], lambda values: sum(values) / len(values))
        xm.master_print(f"epoch {epoch}: {reduced:.4f}")
    xm.save({"model": model.state_dict(), "losses": losses}, "net.pt")


# %%
# %%tpu_train
xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=1, start_method="fork")

# %%
checkpoint = torch.load("net.pt")
net = Net()
net.load_state_dict(checkpoint["model"])
net.eval()
with torch.no_grad():
    found = net(series)

# %%
compared = {"losses": checkpoint["losses"], "saved": net, "found": found, "weights": WRAPPED_MODEL._model}
