"""No TPUStrategy: nothing has to be in a scope."""

import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])  # ok: TPU703
model.compile(optimizer=tf.keras.optimizers.Adam(), loss="mse", jit_compile=True)  # ok: TPU703, TPU701
model.fit(tf.zeros((128, 8)), tf.zeros((128, 1)), batch_size=128)
