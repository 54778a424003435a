"""Python in the pipeline of a TPU node."""

import numpy as np
import tensorflow as tf
from tensorflow.data import Dataset
from datasets import load_dataset
from transformers import TFAutoModelForSequenceClassification

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="my-tpu-node")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
train = load_dataset("nyu-mll/glue", "cola", split="train")

with strategy.scope():
    model = TFAutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-cased")
    model.compile(optimizer="adam")


def samples():
    for number in range(1024):
        yield np.full((8,), number)


def read(path):
    return np.load(path)


spec = tf.TensorSpec((8,))
first = train.to_tf_dataset(columns=["input_ids"], batch_size=32, drop_remainder=True)  # TPU704: train.to_tf_dataset runs Python
second = model.prepare_tf_dataset(train, batch_size=32, drop_remainder=True)  # TPU704: model.prepare_tf_dataset
third = tf.data.Dataset.from_generator(samples, output_signature=spec)  # TPU704: tf.data.Dataset.from_generator runs Python
fourth = Dataset.from_generator(samples, output_types=tf.int64)  # TPU704: from_generator
paths = Dataset.from_tensor_slices(["gs://bucket/a.npy", "gs://bucket/b.npy"])  # ok: TPU704
fifth = paths.map(lambda path: tf.numpy_function(read, [path], tf.float32))  # TPU704: tf.numpy_function


@tf.function
def load(path):
    return tf.py_function(func=read, inp=[path], Tout=tf.float32)  # TPU704: tf.py_function


def with_labels(path):
    image = tf.numpy_function(  # TPU704: tf.numpy_function
        read,
        [path],
        tf.float32,
    )
    return image, 0


sixth = paths.map(with_labels)
seventh = load_dataset("imdb", split="train").with_format("tf").to_tf_dataset(batch_size=8, drop_remainder=True)  # TPU704: to_tf_dataset

arrays = Dataset.from_tensor_slices(dict(train[:1024]))  # ok: TPU704
records = tf.data.TFRecordDataset(["gs://bucket/train.tfrecord"])  # ok: TPU704
mapped = records.map(lambda record: tf.io.parse_tensor(record, tf.float32))  # ok: TPU704
numbers = Dataset.range(1024).batch(64, drop_remainder=True)  # ok: TPU704
generated = [sample for sample in samples()]  # ok: TPU704
tensors = train.with_format("numpy")[:1024]  # ok: TPU704
with tf.device("/job:localhost"):
    here = Dataset.from_generator(samples, output_signature=spec)  # ok: TPU704


class Rows(tf.keras.utils.Sequence):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.zeros((8, 4)), np.zeros(8)


class Plain:
    def __getitem__(self, index):
        return np.zeros((8, 4))


of_python = Rows()  # TPU704: Rows runs Python
plain = Plain()  # ok: TPU704
images = tf.keras.preprocessing.image.ImageDataGenerator(rescale=1 / 255)  # TPU704: ImageDataGenerator runs Python
