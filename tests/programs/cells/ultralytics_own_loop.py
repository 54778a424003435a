# %% [markdown]
# # Ultralytics: a detection model and its loss, in a loop of one's own
# `YOLO(...).train()` itself knows no XLA device. The model's `loss()` works on one.
#
# Plain run: XLA:CPU. Compiles: 18.

# %%
import torch
import torch_xla
from torch.utils.data import DataLoader
from ultralytics.cfg import get_cfg
from ultralytics.nn.tasks import DetectionModel

torch.manual_seed(120)

# %%
layout = {
    "nc": 2,
    "backbone": [
        [-1, 1, "Conv", [8, 3, 2]],
        [-1, 1, "Conv", [8, 3, 2]],
        [-1, 1, "C3k2", [16, False, 0.5]],
        [-1, 1, "Conv", [16, 3, 2]],
    ],
    "head": [[-1, 1, "C2f", [16, True]], [[2, 4], 1, "Detect", ["nc"]]],
}
model = DetectionModel(layout, ch=3, verbose=False)
model.args = get_cfg()
images, boxes = torch.rand(16, 3, 32, 32), torch.rand(16, 2, 4) * 0.3 + 0.3
classes = torch.randint(0, 2, (16, 2, 1)).float()
rows = list(zip(images, boxes, classes))
losses = []


# %%
# %%tpu_train model
def train(model):
    device = torch_xla.device()
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        for pictures, places, kinds in DataLoader(rows, batch_size=4):
            count = places.shape[1]
            batch = {
                "img": pictures.to(device),
                "bboxes": places.flatten(0, 1).to(device),
                "cls": kinds.flatten(0, 1).to(device),
                "batch_idx": torch.arange(len(pictures)).repeat_interleave(count).to(device),
            }
            loss, parts = model(batch)
            loss.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
            losses.append([loss.sum().item(), *(part.item() for part in parts.values())])


# %%
with torch.no_grad():
    found = model.cpu().eval()(images[:2])[0]

# %%
compared = {"losses": losses, "found": found, "weights": model.state_dict()}
