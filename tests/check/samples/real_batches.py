"""Batches that are looked at, blocks that are full, and texts of diffusion models: none of them is a changing shape."""

import tensorflow as tf
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer, CLIPTextModel, DataCollatorForLanguageModeling

tokenizer = AutoTokenizer.from_pretrained("gpt2")
accelerator = Accelerator()


def rows(files):
    return tf.data.TFRecordDataset(files)


training = rows(["a.tfrec"]).shuffle(2048).batch(64)  # TPU306: keeps the short last batch
looked_at = training.unbatch().batch(20)  # ok: TPU306
pictures, labels = next(iter(training.unbatch().shuffle(9).batch(20)))  # ok: TPU306
for pictures, labels in training.unbatch().batch(20):  # ok: TPU306
    break


def for_workers(x, y, context):
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.batch(32)  # ok: TPU306
    return data.prefetch(2)


def chunks(example):
    """Texts are cut into pieces of one length, and the short last piece is left out."""
    found = tokenizer(example["text"], truncation=True, max_length=128, return_overflowing_tokens=True, return_length=True)
    whole = zip(found["length"], found["input_ids"], strict=True)
    return {"input_ids": [ids for length, ids in whole if length == 128]}


collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # ok: TPU301


def train(loader, optimizer):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = model(batch["input_ids"], labels=batch["input_ids"]).loss  # ok: TPU305
        accelerator.backward(loss)
        optimizer.step()


def denoise(loader, unet, optimizer):
    text_encoder = CLIPTextModel.from_pretrained("openai/clip-vit-base-patch32")
    for batch in loader:
        states = text_encoder(batch["input_ids"])[0]  # ok: TPU305
        loss = torch.nn.functional.mse_loss(unet(batch["noisy"], batch["steps"], states).sample, batch["noise"])
        accelerator.backward(loss)
        optimizer.step()
