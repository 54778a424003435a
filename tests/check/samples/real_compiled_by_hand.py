"""TensorFlow without a TPU: what is compiled by XLA is meant, by both names of the argument."""

import tensorflow as tf


@tf.function(experimental_compile=True)
def older(x):
    if x[0] > 0:  # TPU101: the value of x[0]
        return x
    return x + tf.where(x)[0]  # TPU203: tf.where(x)


@tf.function(jit_compile=False)
def never(x):
    if x[0] > 0:  # ok: TPU101
        return x
    return x + tf.where(x)[0]  # ok: TPU203


def step(model, x):
    return tf.reduce_mean(model(x))


fast = tf.function(step, jit_compile=True)


def train(model, dataset):
    for number, x in enumerate(dataset):
        loss = fast(model, x)
        print(number, x.shape)  # ok: TPU103
        if number % 10 == 0:
            print(loss.numpy())  # ok: TPU102
    return float(loss)  # ok: TPU102
