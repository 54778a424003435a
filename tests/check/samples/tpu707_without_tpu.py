"""On a CPU or GPU a model may look up strings."""

from tensorflow import keras

model = keras.Sequential([keras.layers.StringLookup(vocabulary=["cat"]), keras.layers.Embedding(10, 4)])  # ok: TPU707
model.save_weights("words.h5")  # ok: TPU708
