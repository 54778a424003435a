"""Runs the advised tf.data lines with TensorFlow and prints the batch shapes as JSON."""

from __future__ import annotations

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tpu_magics.padding.report import PadOptions, advise

LENGTHS = [3, 9, 17, 30, 31, 33, 40, 48, 60, 61, 62, 63] * 4


def rows() -> tf.data.Dataset:
    spec = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32))
    return tf.data.Dataset.from_generator(lambda: ((list(range(1, n + 1)), 1) for n in LENGTHS), output_signature=spec)


def main() -> None:
    report = advise(LENGTHS, PadOptions(plain=True, batch=4, multiples=(32,), buckets=2, tf_data=True), "lengths")
    found = {}
    for way in report.ways:
        batches = eval(way.code, {"tf": tf, "dataset": rows()})
        found[way.name] = {
            "lengths": list(way.lengths),
            "shapes": [ids.shape.as_list() for ids, _ in batches],
            "tokens": sum(int(tf.math.count_nonzero(ids)) for ids, _ in batches),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
