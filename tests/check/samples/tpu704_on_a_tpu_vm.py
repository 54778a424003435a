"""On a TPU VM the pipeline runs beside the TPU, and files of the machine are at hand."""

import tensorflow as tf
from datasets import load_dataset

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")  # ok: TPU706
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
train = load_dataset("nyu-mll/glue", "cola", split="train")

first = train.to_tf_dataset(batch_size=32, drop_remainder=True)  # ok: TPU704
second = tf.data.Dataset.from_generator(lambda: iter(range(8)), output_types=tf.int64)  # ok: TPU704
third = tf.data.TFRecordDataset("data/train.tfrecord")  # ok: TPU705
fourth = third.map(lambda x: tf.numpy_function(len, [x], tf.int64))  # ok: TPU704
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")  # ok: TPU702
model.fit(first, callbacks=[tf.keras.callbacks.ModelCheckpoint("checkpoints/model.weights.h5")])  # ok: TPU705
model.save("out/model")  # ok: TPU705 # TPU708: Keras 3 refuses
