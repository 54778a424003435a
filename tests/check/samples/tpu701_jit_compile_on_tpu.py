"""Keras models for a TPU, with the rehearsal's jit_compile left on."""

import functools

import keras
import tensorflow as tf
from transformers import TFAutoModelForSequenceClassification

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
USE_XLA = True
on_tpu = bool(tf.config.list_logical_devices("TPU"))


def make_model():
    return keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])


with strategy.scope():
    model = make_model()
    model.compile(optimizer="adam", loss="mse", jit_compile=True)  # TPU701: model.compile is called with jit_compile=True
    bert = TFAutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-cased", num_labels=2)
    bert.compile(
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        jit_compile=True,  # TPU701: bert.compile
    )
    wide = keras.Sequential([keras.layers.Dense(4096)])
    wide.compile("sgd", "mse", jit_compile=USE_XLA)  # TPU701: wide.compile


@tf.function(jit_compile=True)  # TPU701: tf.function is called with jit_compile=True
def distributed_step(batch):
    return strategy.run(one_step, args=(batch,))


@functools.partial(tf.function, jit_compile=True)  # TPU701: jit_compile=True
def another_step(batch):
    return strategy.run(one_step, args=(batch,))


@tf.function(experimental_compile=True)  # TPU701: experimental_compile=True
def old_step(batch):
    return strategy.run(one_step, args=(batch,))


def one_step(batch):
    return wide(batch)


fast_step = tf.function(one_step, jit_compile=True)  # TPU701: tf.function


def compile_with(jit):
    with strategy.scope():
        deep = make_model()
        deep.compile(optimizer="adam", loss="mse", jit_compile=jit)  # TPU701: deep.compile
    return deep


compile_with(True).jit_compile = True  # TPU701: jit_compile is True


@tf.function  # ok: TPU701
def plain_step(batch):
    return strategy.run(one_step, args=(batch,))


@tf.function(jit_compile=False)  # ok: TPU701
def uncompiled_step(batch):
    return strategy.run(one_step, args=(batch,))


def fine(options):
    with strategy.scope():
        model = make_model()
        model.compile(optimizer="adam", loss="mse")  # ok: TPU701
        model.compile(optimizer="adam", loss="mse", jit_compile=False)  # ok: TPU701
        model.compile(optimizer="adam", loss="mse", jit_compile="auto")  # ok: TPU701
        model.compile(optimizer="adam", loss="mse", jit_compile=not on_tpu)  # ok: TPU701
        model.compile(optimizer="adam", loss="mse", jit_compile=options.jit)  # ok: TPU701
        model.compile(optimizer="adam", loss="mse", jit_compile=strategy is None)  # ok: TPU701
    return model


def at_home():
    rehearsed = make_model()
    rehearsed.compile(optimizer="adam", loss="mse", jit_compile=True)  # ok: TPU701
    return rehearsed


def for_each_device(tpu):
    with strategy.scope():
        model = make_model()
        if tpu:
            model.compile(optimizer="adam", loss="mse")  # ok: TPU701
        else:
            model.compile(optimizer="adam", loss="mse", jit_compile=True)  # ok: TPU701
    if not on_tpu:
        model.compile(optimizer="adam", loss="mse", jit_compile=True)  # ok: TPU701
    model.fit(tf.zeros((128, 8)), tf.zeros((128, 1)), batch_size=128)
    return model


at_home().fit(tf.zeros((128, 8)), tf.zeros((128, 1)), batch_size=128)
