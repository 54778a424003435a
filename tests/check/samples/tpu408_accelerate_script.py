"""A script for `accelerate launch`, which launches nothing itself."""

import json

import torch
from accelerate import Accelerator
from transformers import AutoModel


def training_function(config, model):
    accelerator = Accelerator()
    model = accelerator.prepare(model)
    torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")  # TPU408: `torch.save` runs on every rank
    model.save_pretrained("out")  # TPU408: `model.save_pretrained` runs on every rank
    accelerator.save(model.state_dict(), "model.pt")  # ok: TPU408
    with open("config.json", "w") as file:
        json.dump(config, file)  # ok: TPU408
    if accelerator.is_main_process:
        torch.save(model.state_dict(), "model.pt")  # ok: TPU408


def convert(model):
    torch.save(model.state_dict(), "model.pt")  # ok: TPU408


def main():
    model = AutoModel.from_pretrained("bert-base-cased")
    convert(model)
    training_function({"lr": 0.1}, model)


if __name__ == "__main__":
    main()
