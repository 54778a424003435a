"""Keras' precision policies on a TPU."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import mixed_precision
from tensorflow.keras.mixed_precision import Policy

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

mixed_precision.set_global_policy("mixed_float16")  # TPU502: policy is mixed_float16
tf.keras.mixed_precision.set_global_policy(Policy("mixed_float16"))  # TPU502: policy is mixed_float16
keras.config.set_dtype_policy("float16")  # TPU502: policy is float16
keras.backend.set_floatx("float16")  # TPU502: set to float16
mixed_precision.set_global_policy("mixed_bfloat16")  # ok: TPU502
tf.keras.mixed_precision.set_global_policy(Policy("mixed_bfloat16"))  # ok: TPU502
keras.config.set_dtype_policy("float32")  # ok: TPU502
keras.backend.set_floatx("float32")  # ok: TPU502

with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(2, dtype="float32")])  # ok: TPU502
