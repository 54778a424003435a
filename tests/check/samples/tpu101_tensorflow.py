"""TensorFlow: conditions in code that XLA compiles, and in code that it does not."""

import tensorflow as tf


@tf.function(jit_compile=True)
def halve(x):
    if tf.reduce_sum(x) > 10:  # TPU101: The branch depends on the value of tf.reduce_sum(x)
        x = x / 2.0
    return x


@tf.function(jit_compile=True)
def halve_with_indicator(x):
    big = tf.cast(tf.reduce_sum(x) > 10, tf.float32)  # ok: TPU101
    return x / (1.0 + big)


@tf.function(jit_compile=True)
def halve_with_cond(x, training=False):
    if training and x.shape[0] > 1:  # ok: TPU101
        x = x * 2.0
    if x.shape.rank == 2 and x.dtype == tf.float32:  # ok: TPU101
        x = tf.expand_dims(x, 0)
    if tf.shape(x)[0] > 3:  # ok: TPU101
        x = x[:3]
    return tf.cond(tf.reduce_sum(x) > 10, lambda: x / 2.0, lambda: x)  # ok: TPU101


def eager(x):
    if tf.reduce_sum(x) > 10:  # ok: TPU101
        x = x / 2.0
    return x


@tf.function(jit_compile=True)
def newton(x):
    error = tf.constant(1.0)
    while error > 1e-3:  # TPU101: The loop's condition depends on the value of error
        step = (x * x - 2.0) / (2.0 * x)
        error = tf.reduce_max(tf.abs(step))
        x = x - step
    both = tf.reduce_any(x > 1) and tf.reduce_all(x < 2)  # TPU101: `and` needs the value of tf.reduce_any(x > 1)
    sign = 1.0 if tf.reduce_mean(x) > 0 else -1.0  # TPU101: the value of tf.reduce_mean(x)
    assert tf.reduce_all(tf.math.is_finite(x))  # TPU101: The assertion depends on
    ends = not tf.reduce_any(x < 0)  # TPU101: `not` needs the value of tf.reduce_any(x < 0)
    return tf.where(x > 0, x, -x), both, sign, ends  # ok: TPU101
