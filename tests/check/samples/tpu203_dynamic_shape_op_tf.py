"""The same in TensorFlow: what a strategy runs is compiled, the input pipeline is not."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(1e-3)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def cleaned(x, y):
    x = tf.boolean_mask(x, y >= 0)  # ok: TPU203
    return x, tf.unique(y)[0]  # ok: TPU203


data = tf.data.Dataset.from_tensor_slices((np.zeros((64, 4)), np.zeros(64))).map(cleaned).batch(8, drop_remainder=True)


def step(x, y):
    with tf.GradientTape() as tape:
        out = model(x)
        keep = y >= 0
        losses = loss_fn(tf.boolean_mask(y, keep), tf.boolean_mask(out, keep))  # TPU203: tf.boolean_mask(y, keep)
        loss = tf.reduce_mean(losses)
    places = tf.where(y > 0)  # TPU203: tf.where(y > 0)
    chosen = tf.where(y > 0, losses, 0.0)  # ok: TPU203
    also = tf.where(condition=y > 0, x=losses, y=tf.zeros_like(losses))  # ok: TPU203
    kinds, _ = tf.unique(y)  # TPU203: tf.unique(y)
    kinds, _, counts = tf.unique_with_counts(y)  # TPU203: tf.unique_with_counts(y)
    left, right = tf.dynamic_partition(x, tf.cast(y > 0, tf.int32), 2)  # TPU203: tf.dynamic_partition
    valid = tf.sequence_mask(y)  # TPU203: tf.sequence_mask(y)
    fixed = tf.sequence_mask(y, maxlen=128)  # ok: TPU203
    flat = tf.reshape(x, [-1])  # ok: TPU203
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


@tf.function
def train_step(batch):
    return strategy.run(step, args=batch)


def report(values):
    return np.unique(values)  # ok: TPU203


for batch in strategy.experimental_distribute_dataset(data):
    train_step(batch)
