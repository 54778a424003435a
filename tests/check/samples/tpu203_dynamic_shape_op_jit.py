"""TensorFlow functions compiled by XLA at home, and others that are not."""

import tensorflow as tf


@tf.function(jit_compile=True)
def positives(x):
    kept = tf.boolean_mask(x, x > 0)  # TPU203: tf.boolean_mask(x, x > 0)
    places = tf.where(x > 0)  # TPU203: tf.where(x > 0)
    total = tf.reduce_sum(tf.where(x > 0, x, tf.zeros_like(x)))  # ok: TPU203
    return kept, places, total


@tf.function(jit_compile=True)
def masked_loss(logits, labels):
    keep = labels >= 0
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[keep], logits[keep])  # TPU201: labels[keep]
    weight = tf.cast(keep, tf.float32)
    fixed = tf.reduce_sum(losses * weight) / tf.reduce_sum(weight)  # ok: TPU201
    longest = tf.reduce_max(labels)
    cut = logits[:, :longest]  # TPU204: depend on the value of longest
    part = logits[:, : tf.shape(labels)[0]]  # ok: TPU204
    rows = tf.repeat(logits, labels, axis=0)  # TPU205: depends on the values of labels
    twice = tf.repeat(logits, 2, axis=0)  # ok: TPU205
    return losses, fixed, cut, part, rows, twice


def cleaned(x, y):
    return tf.boolean_mask(x, y > 0), tf.unique(y)[0]  # ok: TPU203


data = tf.data.Dataset.range(64).map(lambda x: (x, x)).batch(8, drop_remainder=True).map(cleaned)
