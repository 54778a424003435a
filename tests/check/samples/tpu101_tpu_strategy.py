"""Keras and a custom loop under a TPUStrategy: conditions in the compiled step, and around it."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers


class Scaler(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=())
        if shape[-1] is None:  # ok: TPU101
            raise ValueError("the last dimension must be known")

    def call(self, inputs, training=None, mask=None):
        if training:  # ok: TPU101
            inputs = inputs * 0.5
        if mask is not None:  # ok: TPU101
            inputs = inputs * tf.cast(mask, inputs.dtype)
        if tf.reduce_max(inputs) > 1.0:  # TPU101: The branch depends on the value of tf.reduce_max(inputs)
            inputs = inputs / tf.reduce_max(inputs)
        return inputs


resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = keras.Sequential([Scaler(), layers.Dense(10)])
    optimizer = keras.optimizers.Adam()


@tf.function
def train_step(iterator):
    def step_fn(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
            if tf.math.is_nan(loss):  # TPU101: the value of tf.math.is_nan(loss)
                loss = tf.zeros_like(loss)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    return strategy.run(step_fn, args=(next(iterator),))


def fit(dataset, epochs, patience):
    best, waited = None, 0
    for epoch in range(epochs):
        total, count = 0.0, 0
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        for _ in range(100):
            total += strategy.reduce(tf.distribute.ReduceOp.MEAN, train_step(iterator), axis=None)
            count += 1
        mean = float(total) / count
        if best is None or mean < best:  # ok: TPU101
            best, waited = mean, 0
        elif waited > patience:  # ok: TPU101
            break
    return best
