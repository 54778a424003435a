"""Strings, lookups and ragged rows: in a model, where a TPU has none, and in the data, which the host reads."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

outside = layers.StringLookup(vocabulary=["cat", "dog"])  # ok: TPU707
vectorize = layers.TextVectorization(max_tokens=1000)  # TPU707: TextVectorization is part of a model
data = tf.data.Dataset.from_tensor_slices((["cat"], [1.0])).map(lambda x, y: (outside(x), y))


class Words(keras.Model):
    def __init__(self):
        super().__init__()
        self.lookup = layers.StringLookup(vocabulary=["cat"])  # TPU707: StringLookup is part of a model
        self.scale = layers.Rescaling(1 / 255)  # ok: TPU707
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(self.scale(self.lookup(x)))


with strategy.scope():
    texts = keras.Input((1,), dtype=tf.string)  # TPU707: The model gets strings
    names = layers.Input((1,), dtype="string")  # TPU707: The model gets strings
    rows = keras.Input((None,), ragged=True)  # TPU707: The model gets ragged rows
    numbers = keras.Input((16,), dtype="int32", ragged=False)  # ok: TPU707
    hidden = layers.Dense(4)(vectorize(texts))
    hashed = layers.Hashing(64)(names)  # TPU707: Hashing is part of a model
    first = keras.Model([texts, names, rows, numbers], [hidden, hashed])
    second = keras.Sequential(
        [
            layers.IntegerLookup(vocabulary=[1, 2]),  # TPU707: IntegerLookup is part of a model
            layers.Embedding(10, 4),  # ok: TPU707
        ]
    )
    second.add(layers.StringLookup(vocabulary=["cat"], invert=True))  # TPU707: StringLookup is part of a model
    first.compile(optimizer="adam", loss="mse")
    second.compile(optimizer="adam", loss="mse")
second.fit(data.batch(8, drop_remainder=True))
