# %% [markdown]
# # diffusers: a UNet trained to denoise, with an EMA copy, and images made by its pipeline afterwards
# The form of the guide "Train a diffusion model": noise, timesteps, `accelerator.accumulate`, a cosine schedule.
#
# Plain run: CPU. Compiles: 6.

# %%
import torch
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

torch.manual_seed(110)

# %%
images = torch.rand(16, 1, 8, 8).round() * 2 - 1
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    attention_head_dim=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
noise_scheduler = DDPMScheduler(num_train_timesteps=20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=8)
ema = EMAModel(model.parameters(), decay=0.9)
losses = []


# %%
# %%tpu_train model
def train_loop(model):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(images, batch_size=4)
    model, opt, loader, plan = accelerator.prepare(model, optimizer, loader, lr_scheduler)
    ema.to(accelerator.device)
    for _ in range(4):
        for clean in loader:
            noise = torch.randn(clean.shape, generator=generator).to(clean.device)
            steps = torch.randint(0, 20, (len(clean),), generator=generator).to(clean.device)
            noisy = noise_scheduler.add_noise(clean, noise, steps)
            with accelerator.accumulate(model):
                loss = mse_loss(model(noisy, steps, return_dict=False)[0], noise)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                plan.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                ema.step(model.parameters())
            losses.append(loss.item())


# %%
pipeline = DDPMPipeline(model, noise_scheduler)
pipeline.set_progress_bar_config(disable=True)
made = pipeline(2, generator=torch.Generator().manual_seed(2), num_inference_steps=5, output_type="np").images

# %%
compared = {
    "losses": losses,
    "made": made,
    "weights": model,
    "ema": list(ema.shadow_params),
    "learning rate": lr_scheduler.get_last_lr(),
}
