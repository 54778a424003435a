"""Published step times of TPUs beside the bound and the compiler's estimate of a preflight of the same program.

Each program is written as its source describes it, traced for that TPU, and compiled; nothing runs on a TPU. Rows whose
programs cannot be rebuilt from public sources are left out (kernels, or settings that are not told).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import fresh, steady
from tpu_magics.preflight.store import Store, default_folder

TITLE = "Published step times, the bound, and the compiler's estimate"
DOCUMENT = "profile.md"
TIMEOUT = 3000.0  # seconds for one program


@dataclass(frozen=True)
class Published:
    """A measurement. `published`: milliseconds of a step, the least and the most that are told; `source`: where."""

    program: str
    function: Callable[[], None]
    target: str
    published: tuple[float, float]
    source: str


def resnet50() -> None:
    """torch_xla's test/test_train_mp_imagenet.py with --fake_data: ResNet-50 in f32, 128 images of 224 x 224 for each
    device, SGD with momentum."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from transformers import ResNetConfig, ResNetForImageClassification

    device = torch_xla.device()
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(5):
        images, labels = torch.zeros(128, 3, 224, 224).to(device), torch.zeros(128, dtype=torch.long).to(device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()


def stable_diffusion() -> None:
    """diffusers' examples/research_projects/pytorch_xla/train_text_to_image_xla.py of 11 September 2024, with the sizes
    of stabilityai/stable-diffusion-2-base: 16 images of 512 x 512 for each chip, all in bf16. The U-Net is trained
    with AdamW; the encoders of images and texts, which run in each step, are not."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    blocks = {"layers_per_block": 2, "latent_channels": 4, "block_out_channels": (128, 256, 512, 512)}
    sides = {f"{side}_block_types": (f"{side.title()}{coder}Block2D",) * 4 for side, coder in CODERS}
    vae = AutoencoderKL(**blocks, **sides, sample_size=512)
    width = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16}
    texts = CLIPTextModel(CLIPTextConfig(**width, vocab_size=49408, max_position_embeddings=77, hidden_act="gelu"))
    heads = {"attention_head_dim": (5, 10, 20, 20), "cross_attention_dim": 1024, "use_linear_projection": True}
    unet = UNet2DConditionModel(**heads, sample_size=64)
    noises = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    device = torch_xla.device()
    for model in (vae, texts, unet):
        model.to(device, dtype=torch.bfloat16)
    vae.requires_grad_(False)
    texts.requires_grad_(False)
    optimizer = torch.optim.AdamW(unet.train().parameters(), lr=1e-6, foreach=True)
    for _ in range(5):
        images = torch.zeros(16, 3, 512, 512, dtype=torch.bfloat16).to(device)
        words = torch.zeros(16, 77, dtype=torch.long).to(device)
        optimizer.zero_grad()
        latents = vae.encode(images).latent_dist.sample() * vae.config.scaling_factor
        noise = torch.randn_like(latents)
        steps = torch.randint(0, noises.config.num_train_timesteps, (16,), device=device)
        noisy = noises.add_noise(latents, noise, steps)
        predicted = unet(noisy, steps, texts(words, return_dict=False)[0], return_dict=False)[0]
        torch.nn.functional.mse_loss(predicted.float(), noise.float()).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()


CODERS = (("down", "Encoder"), ("up", "Decoder"))
PUBLISHED = (
    Published("ResNet-50, f32, 128 images per chip", resnet50, "v4-8", (71.1, 73.1), "pytorch/xla#6658, #6026, #7131"),
    Published("ResNet-50, f32, 128 images per chip", resnet50, "v4-8", (88.0, 88.4), "pytorch/xla#5720"),
    Published("ResNet-50, f32, 128 images per core", resnet50, "v3-8", (220.7, 232.7), "pytorch/xla#4030, #4324"),
)


def one(number: int) -> dict[str, Any]:
    """The row of that number."""
    os.environ["XDG_CACHE_HOME"] = str(Path.home() / ".cache")
    row = PUBLISHED[number]
    found = steady.compiled(steady.traced(row.function, target=row.target), row.target, Store(default_folder()))
    least, estimate = found.least, found.profile.seconds
    if not least or estimate is None:
        raise RuntimeError(f"{row.program} on {row.target}: {found.status}, {found.profile.missing}")
    middle = sum(row.published) / 2
    unknown = len(found.profile.whole.unknown)
    return {
        "program": row.program,
        "TPU": row.target,
        "published ms": " to ".join(f"{value:g}" for value in row.published),
        "bound ms": 1000 * least,
        "estimate ms": 1000 * estimate,
        "bound / published": 1000 * least / middle,
        "estimate / published": 1000 * estimate / middle,
        "operations without an estimate": unknown,
        "source": row.source,
    }


def measure() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        fresh.call(__name__, "one", number, timeout=TIMEOUT) for number in range(len(PUBLISHED))
    ]
    return found


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    shares = [row["estimate / published"] for row in rows]
    bounds = [row["bound / published"] for row in rows]
    return [
        f"The estimate is {min(shares):.2f} to {max(shares):.2f} of what was published, the bound {min(bounds):.2f} to "
        f"{max(bounds):.2f}.",
    ]
