"""Everything that has variables is created in the scope, here or in a function that is called there."""

import contextlib

import tensorflow as tf
from tensorflow import keras

try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
except ValueError:
    strategy = tf.distribute.get_strategy()


def make_model(width):
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(1)(keras.layers.Dense(width)(inputs))
    return keras.Model(inputs, outputs)  # ok: TPU703


def compiled(width):
    model = make_model(width)  # ok: TPU703
    model.compile(optimizer=keras.optimizers.Adam(), loss="mse", metrics=[keras.metrics.MeanAbsoluteError()])  # ok: TPU703
    return model


class Teacher(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = keras.applications.MobileNetV2(weights=None)  # ok: TPU703

    def call(self, x):
        return self.body(x)


def never_called():
    return keras.Sequential([keras.layers.Dense(1)])  # ok: TPU703


class Experiment:
    def __init__(self, strategy):
        self.strategy = strategy
        with self.strategy.scope():
            self.model = self.build()
            self.model.compile(optimizer="adam", loss="mse")  # ok: TPU703
            self.optimizer = keras.optimizers.SGD(0.1)  # ok: TPU703
        self.loss = keras.losses.MeanSquaredError()  # ok: TPU703

    def build(self):
        return keras.Sequential([keras.layers.Dense(1)])  # ok: TPU703

    def run(self, data):
        self.model.fit(data)


with strategy.scope():
    model = compiled(64)
    teacher = Teacher()  # ok: TPU703
    teacher.compile("adam", "mse")

with strategy.scope() as scope, tf.name_scope("wide"):
    wide = keras.Sequential([keras.layers.Dense(1)])  # ok: TPU703
    wide.compile("adam", "mse")

makers = {"small": lambda: keras.Sequential([keras.layers.Dense(1)])}  # ok: TPU703
with contextlib.suppress(ValueError), strategy.scope():
    small = makers["small"]()
    small.compile(optimizer=keras.optimizers.Adam(), loss="mse")  # ok: TPU703, TPU702

with strategy.scope() if strategy else contextlib.nullcontext():
    chosen = keras.Sequential([keras.layers.Dense(1)])  # ok: TPU703
    chosen.compile("adam", "mse")


def given_a_strategy(strategy):
    fourth = keras.Sequential([keras.layers.Dense(1)])  # ok: TPU703
    fourth.fit(None)


history = model.fit(tf.zeros((128, 8)), tf.zeros((128, 1)), batch_size=128)
Experiment(strategy).run(tf.data.Dataset.from_tensor_slices(tf.zeros((8, 8))).batch(8, drop_remainder=True))
