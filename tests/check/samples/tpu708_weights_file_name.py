"""File names of models and weights: those of Keras 3, and those that it refuses."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.callbacks import ModelCheckpoint

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
data = tf.data.Dataset.range(64).batch(8, drop_remainder=True)


def train(name, path):
    first = ModelCheckpoint("best.h5", save_weights_only=True)  # TPU708: 'best.h5', which Keras 3 refuses
    second = ModelCheckpoint(filepath="best")  # TPU708: 'best', which Keras 3 refuses
    each = ModelCheckpoint("./checkpoints/{epoch:02d}", save_best_only=True)  # TPU708: Keras 3 refuses
    third = keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)  # ok: TPU708
    fourth = keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)  # ok: TPU708
    fifth = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)  # ok: TPU708
    model.fit(data, callbacks=[first, second, each, third, fourth, fifth])
    model.save_weights("model.h5")  # TPU708: model.save_weights gets 'model.h5', which Keras 3 refuses
    model.save_weights("checkpoints/model")  # TPU708: 'checkpoints/model'
    model.save_weights("./checkpoints/weights")  # TPU708: model.save_weights gets './checkpoints/weights'
    model.save("model")  # TPU708: model.save gets 'model', which Keras 3 refuses
    model.save("out/model")  # TPU708: model.save gets 'out/model', which Keras 3 refuses
    model.save_weights("model.weights.h5")  # ok: TPU708
    model.save("model.keras")  # ok: TPU708
    model.save("model.h5")  # ok: TPU708
    model.save(f"{name}.keras")  # ok: TPU708
    model.load_weights("model.h5")  # ok: TPU708
