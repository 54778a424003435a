"""Python numbers given to compiled tf.functions: each new one is traced and compiled again."""

import tensorflow as tf
from tensorflow import keras

model = keras.Sequential([keras.layers.Dense(4)])
optimizer = keras.optimizers.SGD(0.1)


@tf.function(jit_compile=True)
def train_step(x, y, scale, name="step"):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y)) * scale
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


@tf.function
def not_compiled(x, step):
    return x * tf.cast(step, tf.float32)


def train(dataset):
    for step, (x, y) in enumerate(dataset):
        train_step(x, y, 0.1 * step)  # TPU303: 0.1 * step
        train_step(x, y, scale=step)  # TPU303: step
        train_step(x, y, tf.constant(step, dtype=tf.float32))  # ok: TPU303
        train_step(x, y, 0.5, name="step")  # ok: TPU303
        train_step(x[:4], y[:4], float(x.shape[0]))  # ok: TPU303
        not_compiled(x, step)  # ok: TPU303
