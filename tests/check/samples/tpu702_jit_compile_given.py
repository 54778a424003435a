"""The rehearsal with XLA: what a TPU would refuse shows on a laptop."""

import re

import keras
import numpy as np
import tensorflow as tf

x, y = np.zeros((256, 8), "float32"), np.zeros((256, 1), "float32")
pattern = re.compile("tpu")  # ok: TPU702
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", jit_compile=True)  # ok: TPU702
model.fit(x, y, batch_size=64)

on_cpu = not tf.config.list_physical_devices("GPU")
other = keras.Sequential([keras.layers.Dense(1)])
other.compile(optimizer="adam", loss="mse", jit_compile=on_cpu)  # ok: TPU702
other.compile(optimizer="adam", loss="mse")  # ok: TPU702

eager = keras.Sequential([keras.layers.Dense(1)])
eager.compile(optimizer="adam", loss="mse", run_eagerly=True)  # ok: TPU702
