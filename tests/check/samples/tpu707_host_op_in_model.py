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
data = tf.data.Dataset.from_tensor_slices((["cat"], [1.0])).map(lambda x, y: (outside(x), y)).map(prepare)


class Words(keras.Model):
    def __init__(self):
        super().__init__()
        self.lookup = layers.StringLookup(vocabulary=["cat"])  # TPU707: StringLookup is part of a model
        self.scale = layers.Rescaling(1 / 255)  # ok: TPU707
        self.head = layers.Dense(1)

    def call(self, x):
        texts = tf.strings.lower(x["text"])  # TPU707: tf.strings.lower runs in code that XLA compiles
        return self.head(self.scale(self.lookup(tf.strings.split(texts)))) + lengths(x)  # TPU707: tf.strings.split runs


def lengths(x):
    return tf.strings.length(x["name"])  # TPU707: tf.strings.length runs in code that XLA compiles


def prepare(x, y):
    return tf.strings.to_number(x), y  # ok: TPU707


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

split = layers.TextVectorization(max_tokens=1000)  # TPU707: TextVectorization is part of a model, in a program that
split.adapt(["a cat"])
with strategy.scope():
    third = keras.Sequential([split, layers.Embedding(1000, 4)])
    third.compile(optimizer="adam", loss="mse")
third.fit(data)

# Models that only predict: what the trained one is given, and what is saved.
texts = keras.Input((1,), dtype="string")  # ok: TPU707
whole = keras.Model(texts, second(layers.TextVectorization(10)(texts)))  # ok: TPU707
whole.predict(tf.constant(["a cat"]))
export = keras.Sequential([layers.TextVectorization(1000), second, layers.Activation("sigmoid")])  # ok: TPU707
export.compile(loss="mse")
export.evaluate(data)
tf.saved_model.save(export, "out")


# Trained in a loop of one's own, and then used to predict.
looped = keras.Sequential([layers.StringLookup(vocabulary=["cat"]), layers.Embedding(10, 4)])  # TPU707: StringLookup is part
for x, y in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(looped(x) - y)
    optimizer.apply_gradients(zip(tape.gradient(loss, looped.weights), looped.weights))
looped.predict(data)


class Served(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.lookup = layers.TextVectorization(max_tokens=1000)  # ok: TPU707
        self.model = model

    def call(self, texts):
        return self.model(self.lookup(tf.strings.lower(texts)))  # ok: TPU707


Served(second).predict(tf.constant(["a cat"]))
