"""The TPU of this machine, or the one that the environment names."""

import os

import tensorflow as tf

on_vm = os.path.exists("/dev/accel0")
if on_vm:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")  # ok: TPU706
else:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()  # ok: TPU706
strategy = tf.distribute.TPUStrategy(resolver)  # ok: TPU706
