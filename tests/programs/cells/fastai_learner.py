# %% [markdown]
# # fastai: a Learner of an earlier cell, `fit_one_cycle`, metrics, the best model, predictions
# In single precision, as fastai makes its own tensors so.
#
# Plain run: CPU. Compiles: 5, plain torch_xla: 0.

# %%
from functools import partial

import torch
from fastai.basics import SGD, DataLoader, DataLoaders, Learner, accuracy, set_seed
from fastai.callback.all import SaveModelCallback
from torch import nn

torch.set_default_dtype(torch.float32)
set_seed(0)
generator = torch.Generator().manual_seed(1)
x = torch.randn(64, 4, generator=generator)
y = (x.sum(1) > 0).long()
rows = list(zip(x, y))
dls = DataLoaders(DataLoader(rows[:48], bs=8), DataLoader(rows[48:], bs=8))
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
learn = Learner(
    dls,
    model,
    loss_func=nn.CrossEntropyLoss(),
    opt_func=partial(SGD, mom=0.9),
    metrics=accuracy,
    cbs=SaveModelCallback(monitor="valid_loss"),
)

# %%
# %%tpu_train
learn.fit_one_cycle(2, 0.05)

# %%
predictions, targets = learn.get_preds()
validated = learn.validate()

# %%
compared = {
    "losses": [float(one) for one in learn.recorder.losses],
    "values": [list(one) for one in learn.recorder.values],
    "rates": list(learn.recorder.lrs),
    "predictions": predictions,
    "validated": list(validated),
    "weights": model,
    "same model": learn.model is model,
    "momentum": [state["grad_avg"] for state in learn.opt.state.values()],
    "device": str(learn.dls.device),
}
