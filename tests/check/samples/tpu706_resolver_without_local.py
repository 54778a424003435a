"""Which TPU?"""

import tensorflow as tf
from tensorflow.distribute import cluster_resolver
from tensorflow.distribute.cluster_resolver import TPUClusterResolver as Resolver

first = tf.distribute.cluster_resolver.TPUClusterResolver()  # TPU706: does not say which TPU
second = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")  # TPU706: TPUClusterResolver does not say
third = cluster_resolver.TPUClusterResolver("")  # TPU706: cluster_resolver.TPUClusterResolver
fourth = Resolver()  # TPU706: Resolver does not say which TPU to use
fifth = tf.distribute.cluster_resolver.TPUClusterResolver.connect()  # TPU706: connect
sixth = Resolver(tpu=None)  # TPU706: Resolver

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()  # TPU706: does not say which TPU
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()


def alone():
    return tf.distribute.TPUStrategy()  # TPU706: without a resolver


def given(name, options):
    return [
        Resolver(tpu="my-tpu-node"),  # ok: TPU706
        Resolver("grpc://10.0.0.2:8470"),  # ok: TPU706
        Resolver(tpu=name),  # ok: TPU706
        Resolver(name),  # ok: TPU706
        Resolver(tpu=options.tpu),  # ok: TPU706
        Resolver(**options),  # ok: TPU706
        Resolver(zone="us-central1-b", project="mine"),  # ok: TPU706
        tf.distribute.TPUStrategy(first),  # ok: TPU706
    ]
