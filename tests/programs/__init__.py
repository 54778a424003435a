"""Programs in the forms that people's notebooks have, each run plain and under `%%tpu_train`, and compared."""
