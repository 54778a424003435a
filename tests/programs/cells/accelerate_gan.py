# %% [markdown]
# # Accelerate: a GAN with two models and two optimizers, settings in a dataclass
# Generator and discriminator take turns; samples from fixed noise are kept in a list of arrays and shown afterwards.
#
# Plain run: CPU. Compiles: 7.

# %%
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


# %%
@dataclass
class Config:
    noise: int = 4
    batch_size: int = 16
    learning_rate: float = 5e-3
    betas: tuple = (0.5, 0.999)
    log: list = field(default_factory=list)


config = Config()
torch.manual_seed(14)
real = torch.randn(64, 2) * 0.3 + torch.tensor([1.0, -1.0])
fixed_noise = torch.randn(8, config.noise)
noises = torch.randn(8, config.batch_size, config.noise)

# %%
generator = nn.Sequential(nn.Linear(config.noise, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=config.learning_rate, betas=config.betas)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=config.learning_rate, betas=config.betas)
samples = []


# %%
# %%tpu_train generator discriminator config
def train(generator, discriminator, config):
    accelerator = Accelerator()
    loader = DataLoader(real, batch_size=config.batch_size)
    g, d, opt_g, opt_d, loader = accelerator.prepare(generator, discriminator, optimizer_g, optimizer_d, loader)
    bce, step = nn.BCEWithLogitsLoss(), 0
    ones = torch.ones(config.batch_size, 1, device=accelerator.device)
    for _ in range(2):
        for batch in loader:
            fake = g(noises[step].to(accelerator.device))
            loss_d = bce(d(batch), ones) + bce(d(fake.detach()), torch.zeros_like(ones))
            opt_d.zero_grad()
            accelerator.backward(loss_d)
            opt_d.step()
            loss_g = bce(d(fake), ones)
            opt_g.zero_grad()
            accelerator.backward(loss_g)
            opt_g.step()
            config.log.append({"step": step, "d": loss_d.item(), "g": loss_g.item()})
            step += 1
        with torch.no_grad():
            samples.append(g(fixed_noise.to(accelerator.device)).cpu().numpy())


# %%
drift = np.stack(samples).mean(axis=1)

# %%
compared = {
    "log": config.log,
    "samples": samples,
    "drift": drift,
    "generator": generator,
    "discriminator": discriminator,
    "optimizers": [optimizer_g, optimizer_d],
}
