"""On a CPU or GPU a model may look up strings."""

from tensorflow import keras

model = keras.Sequential([keras.layers.StringLookup(vocabulary=["cat"]), keras.layers.Embedding(10, 4)])  # ok: TPU707
model.save_weights("words.h5")  # ok: TPU708
texts = keras.Input((1,), dtype="string")  # ok: TPU707
rows = keras.Input((None,), ragged=True)  # ok: TPU707
vectors = keras.layers.TextVectorization()(texts)  # ok: TPU707
