"""Keras on a GPU, where float16 is what is wanted: nothing is said of it."""

import tensorflow as tf
from tensorflow import keras

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

keras.mixed_precision.set_global_policy("mixed_float16")  # ok: TPU502
model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(2, dtype="float32")])
