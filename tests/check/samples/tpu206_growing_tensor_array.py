"""Arrays that loops write into, in functions that XLA compiles, and elsewhere."""

import tensorflow as tf
from tensorflow import TensorArray

LONGEST = 16


@tf.function(jit_compile=True)
def gathered(values, n):
    outs = tf.TensorArray(tf.float32, size=0, dynamic_size=True)  # TPU206: tf.TensorArray has size 0
    for i in tf.range(n):
        outs = outs.write(i, values[i])
    return outs.stack()


@tf.function(jit_compile=True)
def by_place(values):
    first = tf.TensorArray(tf.float32, 0, True)  # TPU206: has size 0
    second = TensorArray(tf.float32, 0, dynamic_size=True)  # TPU206: TensorArray has size 0
    third = TensorArray(dtype=tf.int32, dynamic_size=True, size=0)  # TPU206: cannot grow
    written = tf.TensorArray(tf.float32, size=0, dynamic_size=True).write(0, values)  # TPU206: has size 0
    held = [tf.TensorArray(tf.float32, size=0, dynamic_size=True)]  # TPU206: has size 0
    return first, second, third, written, held


def helper(values):
    return tf.TensorArray(tf.float32, size=0, dynamic_size=True, clear_after_read=False)  # TPU206: has size 0


@tf.function(jit_compile=True)
def through_a_helper(values):
    return helper(values).write(0, values).stack()


@tf.function(jit_compile=True)
def by_while(n):
    outs, i = tf.TensorArray(tf.int32, size=0, dynamic_size=True), tf.constant(0)  # TPU206: has size 0
    while i < n:  # TPU101: the value of i
        outs, i = outs.write(i, i), i + 1
    return outs.stack()


@tf.function(jit_compile=True)
def fixed(values, n, size):
    one = tf.TensorArray(tf.float32, size=LONGEST)  # ok: TPU206
    two = tf.TensorArray(tf.float32, size=LONGEST, dynamic_size=True)  # ok: TPU206
    three = tf.TensorArray(tf.float32, size=size, dynamic_size=True)  # ok: TPU206
    four = tf.TensorArray(tf.float32, size=0, dynamic_size=False)  # ok: TPU206
    five = tf.TensorArray(tf.float32, size=0, dynamic_size=True).unstack(values)  # ok: TPU206
    six = tf.TensorArray(tf.float32, size=tf.shape(values)[0])  # ok: TPU206
    return one, two, three, four, five, six


@tf.function
def not_compiled(values):
    return tf.TensorArray(tf.float32, size=0, dynamic_size=True).write(0, values).stack()  # ok: TPU206


def parsed(line):
    return tf.TensorArray(tf.string, size=0, dynamic_size=True).write(0, line).stack()  # ok: TPU206


lines = tf.data.Dataset.from_tensor_slices(["a", "b"]).map(parsed)
