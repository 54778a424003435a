"""A script for a GPU, which says so."""

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
args = TrainingArguments(  # ok: TPU601, TPU606
    output_dir="out",
    optim="adamw_torch_fused",  # ok: TPU601
    fp16=True,  # ok: TPU602
    fsdp="full_shard",  # ok: TPU604
    evaluation_strategy="steps",  # ok: TPU603
)
Trainer(model=model, args=args).train()
