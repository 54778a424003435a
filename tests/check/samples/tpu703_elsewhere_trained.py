"""A module that makes what another file trains."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

classifier = tf.keras.Sequential([tf.keras.layers.Dense(4)])  # TPU703: outside
optimizer = tf.keras.optimizers.Adam(1e-3)  # TPU703: outside


def new_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(4)])  # ok: TPU703


with strategy.scope():
    model = new_model()
    adam = tf.keras.optimizers.Adam(1e-3)  # ok: TPU703
