"""Files of this machine and a TPU on another."""

import glob
import os
import pathlib

import numpy as np
import pandas as pd
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow.keras.callbacks import ModelCheckpoint, TensorBoard

GCS = "gs://my-bucket"
LOCAL = "/content/data"
FOLDER = os.path.join(LOCAL, "records")
REMOTE = os.path.join(GCS, "records")

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://10.1.2.3:8470")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    optimizer = tf.keras.optimizers.Adam()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)


def data(name, bucket):
    tf.data.TFRecordDataset("train.tfrecord")  # TPU705: tf.data.TFRecordDataset gets "train.tfrecord"
    tf.data.TFRecordDataset([f"{LOCAL}/{n}.tfrecord" for n in range(8)])  # TPU705: a local path
    tf.data.TFRecordDataset(os.path.join(FOLDER, name))  # TPU705: os.path.join(FOLDER, name)
    tf.data.TextLineDataset(LOCAL + "/lines.txt")  # TPU705: LOCAL + "/lines.txt"
    tf.data.Dataset.list_files("./images/*.jpg")  # TPU705: list_files
    tf.keras.utils.image_dataset_from_directory("images", batch_size=64)  # TPU705: "images"
    tfds.load("mnist", split="train")  # TPU705: home directory
    tfds.load("mnist", split="train", data_dir="/data/tfds")  # TPU705: "/data/tfds"
    tf.data.TFRecordDataset(pathlib.Path("data") / "train.tfrecord")  # TPU705: pathlib.Path("data") / "train.tfrecord"
    tf.data.TFRecordDataset(tf.keras.utils.get_file("train.tfrecord", "https://host/train.tfrecord"))  # TPU705: a local path
    records = glob.glob("/content/data/*.tfrecord")
    tf.data.TFRecordDataset(records)  # TPU705: records, a local path
    tf.data.Dataset.range(8).save("numbers")  # TPU705: "numbers"
    either = GCS if bucket else "/content/data"
    tf.data.TFRecordDataset(either + "/train.tfrecord")  # ok: TPU705
    tf.data.TFRecordDataset("gs://bucket/train.tfrecord")  # ok: TPU705
    tf.data.TFRecordDataset(os.path.join(REMOTE, name))  # ok: TPU705
    tf.data.TFRecordDataset([f"{GCS}/{n}.tfrecord" for n in range(8)])  # ok: TPU705
    tf.data.TFRecordDataset(f"{bucket}/train.tfrecord")  # ok: TPU705
    tf.data.TFRecordDataset(name)  # ok: TPU705
    tf.data.TFRecordDataset(tf.io.gfile.glob(GCS + "/*.tfrecord"))  # ok: TPU705
    tfds.load("mnist", split="train", try_gcs=True)  # ok: TPU705
    tfds.load("mnist", split="train", data_dir=GCS)  # ok: TPU705
    table = pd.read_csv("data/train.csv")  # ok: TPU705
    array = np.load("data/train.npy")  # ok: TPU705
    with open("data/labels.txt") as file:  # ok: TPU705
        return table, array, file.read()


def checkpoints(path):
    model.save("ckpt")  # TPU705: model.save gets "ckpt" # TPU708: Keras 3 refuses
    model.save_weights("./checkpoints/weights")  # TPU705: model.save_weights # TPU708: Keras 3 refuses
    model.load_weights(filepath="/tmp/weights")  # TPU705: "/tmp/weights"
    model.save_weights("model.weights.h5")  # TPU705: "model.weights.h5"
    model.load_weights("model.weights.h5")  # ok: TPU705
    tf.saved_model.save(model, "export/1")  # TPU705: "export/1"
    tf.keras.models.load_model("ckpt")  # TPU705: load_model
    checkpoint.save("/tmp/ckpt")  # TPU705: checkpoint.save
    checkpoint.restore("checkpoints/ckpt-1")  # TPU705: checkpoint.restore
    tf.train.Checkpoint(model=model).write("ckpt")  # TPU705: "ckpt"
    tf.train.CheckpointManager(checkpoint, "checkpoints", max_to_keep=3)  # TPU705: CheckpointManager
    model.save("gs://bucket/model")  # ok: TPU705
    model.save_weights(f"{GCS}/weights")  # ok: TPU705
    model.save(path)  # ok: TPU705
    model.save("ckpt", options=tf.saved_model.SaveOptions(experimental_io_device="/job:localhost"))  # ok: TPU705
    checkpoint.save("ckpt", options=tf.train.CheckpointOptions(experimental_io_device="/job:localhost"))  # ok: TPU705
    tf.train.CheckpointManager(checkpoint, os.path.join(GCS, "checkpoints"), max_to_keep=3)  # ok: TPU705
    np.save("weights.npy", model.get_weights()[0])  # ok: TPU705


callbacks = [
    ModelCheckpoint("./checkpoints/{epoch:02d}", save_best_only=True),  # TPU705: ModelCheckpoint # TPU708: Keras 3 refuses
    TensorBoard(log_dir="logs"),  # TPU705: TensorBoard
    tf.keras.callbacks.BackupAndRestore("backup"),  # TPU705: BackupAndRestore
    ModelCheckpoint(GCS + "/checkpoints/{epoch:02d}", save_best_only=True),  # ok: TPU705
    TensorBoard(log_dir=os.path.join(GCS, "logs")),  # ok: TPU705
    tf.keras.callbacks.CSVLogger("history.csv"),  # ok: TPU705
]
