"""Batch sizes of training and evaluation, in Keras on a TPU."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
(x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    model.compile(optimizer="adam", loss="mse")

model.fit(x_train, y_train, batch_size=128, epochs=2, validation_batch_size=256)  # TPU409: Evaluation has a batch size of 256 # TPU306: a short last batch of 96 rows
model.evaluate(x_test, y_test, batch_size=512)  # TPU409: Evaluation has a batch size of 512, training has 128.
model.evaluate(x_test, y_test, batch_size=128)  # ok: TPU409
model.predict(x_test, batch_size=64)  # TPU409: a batch size of 64

train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(100).batch(128, drop_remainder=True)
val_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(256, drop_remainder=True)  # TPU409: a batch size of 256
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(128, drop_remainder=True)  # ok: TPU409
