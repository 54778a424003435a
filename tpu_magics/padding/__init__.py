"""Shapes: how to have fewer of them.

What lives here: the lengths of a dataset's samples (sources.py), the ways of padding them and what each costs
(strategies.py, bucket_bounds.py, batch_simulation.py, timings.py), the advice (report.py), and the batches that carry buckets out
(sampler.py). What does not: how it is shown (panel/padding.py), and any framework: datasets, loaders, tensors and
tokenizers are recognised by what they can do, and are never imported.
"""

from tpu_magics.padding.sampler import BucketBatches, PadTo, bucket_for, buckets

__all__ = ["BucketBatches", "PadTo", "bucket_for", "buckets"]
