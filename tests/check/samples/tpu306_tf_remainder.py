"""tf.data training sets whose last batch is short, and those whose batches are all whole."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

AUTO = tf.data.AUTOTUNE
BATCH = 64
resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
(x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()

shuffled = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(1000).batch(BATCH)  # TPU306: 32 rows instead of 64
dropped = tf.data.Dataset.from_tensor_slices(x_train).shuffle(1000).batch(BATCH, drop_remainder=True)  # ok: TPU306
by_position = tf.data.Dataset.from_tensor_slices(x_train).shuffle(1000).batch(BATCH, True)  # ok: TPU306
kept = tf.data.Dataset.from_tensor_slices(x_train).shuffle(1000).batch(BATCH, drop_remainder=False)  # TPU306: 32 rows
by_hundred = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(1000).batch(100)  # ok: TPU306
repeated = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(1000).repeat().batch(BATCH)  # ok: TPU306
taken = tf.data.TFRecordDataset("a.tfrecord").shuffle(1000).take(640).batch(BATCH)  # ok: TPU306
test_set = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(BATCH)  # ok: TPU306
numbers = tf.data.Dataset.range(100).shuffle(100).batch(10)  # ok: TPU306


def load_train(path):
    data = tf.data.TFRecordDataset(path).map(tf.io.parse_tensor)
    return data.batch(BATCH).prefetch(AUTO)  # TPU306: keeps the short last batch


def load_validation(path):
    return tf.data.TFRecordDataset(path).batch(BATCH)  # ok: TPU306


train_ds = tf.data.Dataset.from_tensor_slices(np.zeros((1000, 8)))
train_ds = train_ds.cache().batch(BATCH)  # TPU306: 40 rows instead of 64
val_ds = tf.data.Dataset.from_tensor_slices(np.zeros((100, 8))).batch(BATCH)  # ok: TPU306

with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(10)])
    model.compile(loss="mse")

pairs = tf.data.Dataset.from_tensor_slices((np.zeros((100, 8)), np.zeros((100, 10))))
model.fit(pairs.batch(BATCH), epochs=3)  # TPU306: 36 rows instead of 64
batches = pairs.batch(BATCH)  # TPU306: 36 rows instead of 64
model.fit(batches.prefetch(AUTO), validation_data=pairs.batch(BATCH))  # ok: TPU306
model.evaluate(pairs.batch(BATCH))  # ok: TPU306
model.predict(pairs.batch(BATCH))  # ok: TPU306


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) - y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))


with strategy.scope():
    optimizer = keras.optimizers.Adam()

data = tf.data.TFRecordDataset("b.tfrecord").batch(BATCH)  # TPU306: keeps the short last batch
for x, y in data:
    train_step(x, y)

windows = tf.data.Dataset.range(100).window(5).flat_map(lambda window: window.batch(5))  # ok: TPU306
distributed = strategy.experimental_distribute_dataset(tf.data.TFRecordDataset("c.tfrecord").batch(BATCH))  # TPU306: keeps
iterator = iter(distributed)
for _ in range(10):
    strategy.run(train_step, args=(next(iterator),))

# Arrays: Keras makes the batches, and keeps the last one.
x, y = np.zeros((1000, 8)), np.zeros((1000, 10))
model.fit(x, y, batch_size=BATCH)  # TPU306: a short last batch of 40 rows with batch_size=BATCH
model.fit(x, y)  # TPU306: a short last batch of 8 rows with batch_size=32, Keras' default
model.fit(x[:960], y[:960])  # ok: TPU306
model.fit(x, y, validation_split=0.2)  # ok: TPU306
model.fit(x, y, batch_size=100, validation_split=0.25)  # TPU306: a short last batch of 50 rows
model.fit(load_train("a.tfrecord"))  # ok: TPU306
model.fit(pairs.repeat(), steps_per_epoch=5)  # ok: TPU306
