"""A program that evaluates and never trains: no optimizer is made, and the data is not cut."""

import transformers
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

model = AutoModelForSequenceClassification.from_pretrained("out/best")
model.train(False)
args = TrainingArguments(  # ok: TPU601, TPU606
    output_dir="out",
    per_device_eval_batch_size=32,
    do_eval=True,
)
trainer = Trainer(model=model, args=args)
print(trainer.evaluate(transformers.utils.logging.get_verbosity()))
predictions = trainer.predict(None).predictions
