"""Keras on a workstation."""

import keras
import numpy as np

x, y = np.zeros((256, 8), "float32"), np.zeros((256, 1), "float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")  # ok: TPU702
model.fit(x, y, batch_size=64)
second = keras.Sequential([keras.layers.Dense(1)])
second.compile("sgd", "mse")  # ok: TPU702
second.fit(x, y)
