"""tf.data batches with a dimension left open."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
strategy = tf.distribute.TPUStrategy(resolver)
texts = tf.data.TextLineDataset("corpus.txt")
LENGTH = 64

open_shapes = texts.padded_batch(8, drop_remainder=True)  # TPU301: padded_batch
with_none = texts.padded_batch(8, padded_shapes=([None], []), drop_remainder=True)  # TPU301: padded_batch
with_minus_one = texts.padded_batch(8, padded_shapes=[-1], drop_remainder=True)  # TPU301: padded_batch
ragged = texts.ragged_batch(8, drop_remainder=True)  # TPU301: ragged_batch
bucketed = texts.bucket_by_sequence_length(  # TPU301: bucket_by_sequence_length
    lambda text: tf.strings.length(text),
    bucket_boundaries=[32, 64],
    bucket_batch_sizes=[32, 16, 8],
    drop_remainder=True,
)
fixed = texts.padded_batch(8, padded_shapes=[LENGTH], drop_remainder=True)  # ok: TPU301
fixed_pair = texts.padded_batch(8, padded_shapes=([LENGTH], []), drop_remainder=True)  # ok: TPU301
to_boundary = texts.bucket_by_sequence_length(  # ok: TPU301
    lambda text: tf.strings.length(text),
    bucket_boundaries=[32, 64],
    bucket_batch_sizes=[32, 16, 8],
    drop_remainder=True,
    pad_to_bucket_boundary=True,
)
